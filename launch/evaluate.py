"""Plays a checkpoint: `python launch/evaluate.py --workdir=… --episodes=20`.

Prints the mean return with its standard error; `--video=out.mp4` also shows
episodes. The run in `--workdir` may go on training meanwhile.
"""

import os
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from launch import allow_flags

flags.adopt_module_key_flags(allow_flags)

_WORKDIR = flags.DEFINE_string(
  'workdir', None, "A run's work directory.", required=True
)
_EPISODES = flags.DEFINE_integer('episodes', 20, 'Episodes to play.')
_SAMPLE = flags.DEFINE_bool(
  'sample', False, 'Sample actions as in training, instead of the greedy ones.'
)
_SEED = flags.DEFINE_integer(
  'seed', 0, 'Of environments and sampling.', 0, 2**31 - 1
)
_NUM_ENVS = flags.DEFINE_integer(
  'num_envs', 0, 'Environments side by side; 0: up to 10.'
)
_CHECKPOINT = flags.DEFINE_integer(
  'checkpoint', None, 'Number of the checkpoint; the newest by default.'
)
_VIDEO = flags.DEFINE_string(
  'video',
  '',
  'File (.mp4, .gif) to show the first environment in; a GIF is written where '
  'there is no ffmpeg.',
)


def main(argv: Sequence[str]) -> None:
  """Plays; exits with a sentence where it cannot."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {" ".join(argv[1:])}')
  # A training run may hold the same accelerator: take memory as needed.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  # Here, after the flags are known to be right: this takes seconds.
  from seedrl_jax.envs import registry
  from seedrl_jax.evaluation import scoring
  from seedrl_jax.runtime import process, progress

  process.configure()

  options = scoring.Options(
    episodes=_EPISODES.value,
    sample=_SAMPLE.value,
    seed=_SEED.value,
    num_envs=_NUM_ENVS.value,
    checkpoint=_CHECKPOINT.value,
    video=pathlib.Path(_VIDEO.value) if _VIDEO.value else None,
    allowed=tuple(allow_flags.allowed()),
  )
  line = progress.ProgressLine()
  try:
    line.say(scoring.evaluate(_WORKDIR.value, options, line).report())
  except (OSError, ValueError, registry.MissingLibraryError) as e:
    sys.exit(f'evaluate: {e}')
  except KeyboardInterrupt:
    sys.exit('evaluate: interrupted')


if __name__ == '__main__':
  app.run(main)
