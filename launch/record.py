"""Records demonstrations, for example for R2D3.

  seedrl record --config=configs/….py --out=demos --episodes=50
    --teacher_workdir=…  (or --policy=module:function)

A run with the same configuration then learns from them by
--config.demonstrations.path=demos --config.demonstrations.fraction=0.25. With
--config.replay.address they also fill a table of a running Reverb server.
"""

import functools
import math

from absl import flags

from seedrl_jax.launch import allow_flags, config_flag, play_flags, program

flags.adopt_module_key_flags(allow_flags)
flags.adopt_module_key_flags(play_flags)

_CONFIG = config_flag.define(
  'The configuration of the run that is to learn from the demonstrations.'
)
_TEACHER_WORKDIR = flags.DEFINE_string(
  'teacher_workdir', '', 'Work directory of a run whose checkpoint plays.'
)
_POLICY = flags.DEFINE_string(
  'policy',
  '',
  'module:function of a scripted policy: the function takes (env_spec, seed) '
  'and returns a function from steps (types.EnvOutput) to actions [B, ...].',
)
_OUT = flags.DEFINE_string('out', '', 'Folder to write; it must be new.')
_MIN_RETURN = flags.DEFINE_float(
  'min_return', -math.inf, 'Keep only episodes of at least this return.'
)


def main() -> None:
  """Records and prints the figures."""
  line = play_flags.make_line()
  # Imports take seconds, so parse flags first.
  from seedrl_jax.demonstrations import recording
  from seedrl_jax.run import layout

  config = _CONFIG.value
  layout.check(config)
  options = recording.RecordingOptions(
    teacher_workdir=_TEACHER_WORKDIR.value,
    policy=_POLICY.value,
    out=_OUT.value,
    min_return=_MIN_RETURN.value,
    **play_flags.options(),
  )
  line.say(recording.record(config, options, line).report)


if __name__ == '__main__':
  parser = functools.partial(config_flag.parse, default=None)
  program.start(main, parser, play_flags.ERRORS)
