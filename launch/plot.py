"""Draws runs' return and throughput against frames and wall clock.

  python launch/plot.py --workdir=runs/a --workdir=runs/b [--out=plot.png]

Overlays several runs; draws seeds of one configuration as a mean and a band.
"""

import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from seedrl_jax.runtime import plotting, workdir

_WORKDIR = flags.DEFINE_multi_string(
  'workdir', [], "A run's work directory; may be given several times."
)
_OUT = flags.DEFINE_string(
  'out', '', 'File to draw to; by default plot.png in the first --workdir.'
)


def main(argv: Sequence[str]) -> None:
  """Draws the runs; exits with a message if it cannot."""
  if len(argv) > 1 or not _WORKDIR.value:
    raise app.UsageError('Name runs as --workdir=DIR, once for each.')
  try:
    paths = [workdir.Workdir(value).path for value in _WORKDIR.value]
    out = pathlib.Path(_OUT.value or paths[0] / 'plot.png')
    plotting.plot(paths, out)
  except (OSError, ValueError) as e:
    sys.exit(f'plot: {e}')
  print(f'plot: {out}')


if __name__ == '__main__':
  app.run(main)
