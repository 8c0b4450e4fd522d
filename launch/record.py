"""Records demonstrations, for R2D3 and its like.

  python launch/record.py --config=configs/….py --out=demos --episodes=50
    --teacher_workdir=…  (or --policy=module:function)

A run with the same configuration then learns from them by
--config.demonstrations.path=demos --config.demonstrations.fraction=0.25. With
--config.replay.address the table of a Reverb server that runs is filled.
"""

import functools
import os
import sys
from collections.abc import Sequence

from absl import app, flags

from launch import allow_flags, config_flag

flags.adopt_module_key_flags(allow_flags)

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
  'and returns a function from steps (types.EnvOutput) to actions [B].',
)
_OUT = flags.DEFINE_string('out', '', 'Folder to write; it must be new.')
_EPISODES = flags.DEFINE_integer('episodes', 20, 'Episodes to play.')
_MIN_RETURN = flags.DEFINE_float(
  'min_return', None, 'Keep only episodes of at least this return.'
)
_SAMPLE = flags.DEFINE_bool(
  'sample', False, 'Sample actions as in training, instead of the greedy ones.'
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Of environments, policy and sampling.', 0, 2**31 - 1
)
_NUM_ENVS = flags.DEFINE_integer(
  'num_envs', 0, 'Environments side by side; 0: up to 10.'
)
_CHECKPOINT = flags.DEFINE_integer(
  'checkpoint', None, "Number of the teacher's; the newest by default."
)


def main(argv: Sequence[str]) -> None:
  """Records; exits with a sentence where it cannot."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {" ".join(argv[1:])}')
  # A training run may hold the same accelerator: take memory as needed.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  # Here, after the flags are known to be right: this takes seconds.
  from seedrl_jax.demonstrations import recording
  from seedrl_jax.envs import registry
  from seedrl_jax.runtime import process, progress

  process.configure()
  options = recording.Options(
    teacher_workdir=_TEACHER_WORKDIR.value,
    policy=_POLICY.value,
    out=_OUT.value,
    episodes=_EPISODES.value,
    min_return=_MIN_RETURN.value,
    sample=_SAMPLE.value,
    seed=_SEED.value,
    num_envs=_NUM_ENVS.value,
    checkpoint=_CHECKPOINT.value,
    allowed=tuple(allow_flags.allowed()),
  )
  line = progress.ProgressLine()
  try:
    line.say(recording.record(_CONFIG.value, options, line).report())
  except (OSError, ValueError, registry.MissingLibraryError) as e:
    sys.exit(f'record: {e}')
  except KeyboardInterrupt:
    sys.exit('record: interrupted')


if __name__ == '__main__':
  app.run(main, flags_parser=functools.partial(config_flag.parse, default=None))
