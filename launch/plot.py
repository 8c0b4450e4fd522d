"""Draws what runs logged: return and throughput, and on a second page the rest.

  seedrl plot runs/a runs/b [--out=plot.png]

Takes what seedrl report takes: work directories, folders above them, such as a
sweep's, and quoted patterns of them. Overlays several runs; draws seeds of one
configuration as a mean and a band. The second page is plot-2.png, or in the
same file if that is a PDF: losses, entropy, policy lag, replay ratio and waits.
"""

import pathlib
from collections.abc import Sequence

from absl import flags

from seedrl_jax.lab.plots import curves, plotting
from seedrl_jax.lab.studies import results
from seedrl_jax.launch import program
from seedrl_jax.runtime import workdir

_WORKDIR = flags.DEFINE_multi_string(
  'workdir', [], "As arguments: a run's work directory, or a folder above some."
)
_OUT = flags.DEFINE_string(
  'out',
  '',
  'File to draw to, or folder for plot.png; by default the first one named.',
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


def main() -> None:
  """Draws the runs."""
  if not _WORKDIR.value:
    raise ValueError('name runs, or folders above them.')
  folders = results.find(_WORKDIR.value, 'metrics.csv')
  out = pathlib.Path(_OUT.value)
  if not _OUT.value:
    out = workdir.Workdir(_WORKDIR.value[0]).path
    out = out if out.is_dir() else folders[0]
    out /= 'plot.png'
    workdir.refuse_links(out, out.with_stem('plot-2'))
  elif not out.suffix or out.is_dir():
    out.mkdir(parents=True, exist_ok=True)
    out /= 'plot.png'
  for file in plotting.plot(_read(folders), out, _X.value, _SMOOTH.value):
    print(f'plot: {file}')


def _read(folders: Sequence[pathlib.Path]) -> list[curves.RunCurves]:
  """Reads runs; leaves out those that cannot be drawn, and says so."""
  runs, errors = [], []
  for folder in folders:
    try:
      runs.append(curves.read_run(folder))
    except ValueError as e:
      errors.append(e)
  if not runs:
    raise errors[0]
  for error in errors:
    print(f'plot: left out: {error}')
  return runs


if __name__ == '__main__':
  program.start(main, program.parse_workdirs, (OSError, ValueError))
