"""Trains an agent: `python launch/train.py --config=… --workdir=…`.

Every value of the configuration may be overridden as `--config.x.y=…`.
Starting again with the same `--workdir` resumes.
"""

import signal
import sys
import types
from collections.abc import Sequence

from absl import app, flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  'configs/vtrace_cartpole.py',
  'A file with get_config(); any value may be overridden as --config.x.y=z.',
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  None,
  'Where the run keeps its checkpoints, curves and summary; a run that is '
  'there already is resumed.',
)
_PROFILE = flags.DEFINE_integer(
  'profile',
  0,
  'Updates to capture a jax.profiler trace of, into <workdir>/profile.',
  lower_bound=0,
)


def main(argv: Sequence[str]) -> None:
  """Trains until the end, SIGINT or SIGTERM."""
  if len(argv) > 1:
    raise app.UsageError(f'Unexpected arguments: {" ".join(argv[1:])}')
  # Here, after the flags are known to be right: this takes seconds.
  from seedrl_jax import system

  system.configure_jax()
  try:
    run = system.System(_CONFIG.value, _WORKDIR.value, _PROFILE.value)
  except ValueError as e:
    sys.exit(f'train: {e}')

  def stop(signum: int, frame: types.FrameType | None) -> None:
    del signum, frame
    run.stop()

  signal.signal(signal.SIGINT, stop)
  signal.signal(signal.SIGTERM, stop)
  try:
    run.train()
  except system.RunFailed as e:
    sys.exit(f'train: {e}')


if __name__ == '__main__':
  flags.mark_flag_as_required('workdir')
  app.run(main)
