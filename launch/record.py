"""Records demonstrations, for example for R2D3.

  python launch/record.py --config=configs/….py --out=demos --episodes=50
    --teacher_workdir=…  (or --policy=module:function)

A run with the same configuration then learns from them by
--config.demonstrations.path=demos --config.demonstrations.fraction=0.25. With
--config.replay.address they also fill a table of a running Reverb server.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

from absl import app, flags

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


def main(argv: Sequence[str]) -> None:
  """Records; exits with a message if it cannot."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {" ".join(argv[1:])}')
  play_flags.run('record', _record)


def _record(line: Any) -> Any:
  from seedrl_jax.agents import base as agents
  from seedrl_jax.demonstrations import recording
  from seedrl_jax.run import layout

  config = _CONFIG.value
  layout.check(config, agents.allowed(config))
  options = recording.RecordingOptions(
    teacher_workdir=_TEACHER_WORKDIR.value,
    policy=_POLICY.value,
    out=_OUT.value,
    min_return=_MIN_RETURN.value,
    **play_flags.options(),
  )
  return recording.record(config, options, line)


if __name__ == '__main__':
  program.run(main, functools.partial(config_flag.parse, default=None))
