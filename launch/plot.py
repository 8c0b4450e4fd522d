"""Draws what runs logged: return and throughput, and on a second page the rest.

  seedrl plot --workdir=runs/a --workdir=runs/b [--out=plot.png]

Overlays several runs; draws seeds of one configuration as a mean and a band.
The second page is plot-2.png, or in the same file if that is a PDF: losses,
entropy, policy lag, replay ratio and waits.
"""

import pathlib
import sys
from collections.abc import Sequence

from absl import flags

from seedrl_jax.lab.plots import plotting
from seedrl_jax.launch import program
from seedrl_jax.runtime import workdir

_WORKDIR = flags.DEFINE_multi_string(
  'workdir', [], "A run's work directory; may be given several times."
)
_OUT = flags.DEFINE_string(
  'out', '', 'File to draw to; by default plot.png in the first --workdir.'
)
_X = flags.DEFINE_enum(
  'x',
  None,
  list(plotting.AXES),
  'What to draw over; by default frames, and on the first page also time.',
)
_SMOOTH = flags.DEFINE_integer(
  'smooth',
  1,
  'Draws moving means over this many reports, half of them before and half '
  'after each point; 1: what was logged.',
  lower_bound=1,
)


def _parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line; exits with a message if it is wrong."""
  try:
    rest = flags.FLAGS(argv)
  except flags.Error as e:
    sys.exit(f'plot: {str(e).removeprefix("flag ")}')
  if len(rest) > 1 or not _WORKDIR.value:
    sys.exit('plot: name runs as --workdir=DIR, once for each.')
  return rest


def main(argv: Sequence[str]) -> None:
  """Draws the runs; exits with a message if it cannot."""
  del argv
  try:
    paths = [workdir.Workdir(value).path for value in _WORKDIR.value]
    out = pathlib.Path(_OUT.value or paths[0] / 'plot.png')
    if not _OUT.value:
      workdir.refuse_links(out, out.with_stem('plot-2'))
    files = plotting.plot(paths, out, _X.value, _SMOOTH.value)
  except (OSError, ValueError) as e:
    sys.exit(f'plot: {e}')
  for file in files:
    print(f'plot: {file}')


if __name__ == '__main__':
  program.run(main, _parse_flags)
