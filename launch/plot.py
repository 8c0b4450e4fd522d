"""Draws what runs logged: return and throughput, and on a second page the rest.

  seedrl plot runs/a runs/b [--out=plot.png]

Takes work directories, or folders above them, such as a sweep's. Overlays
several runs; draws seeds of one configuration as a mean and a band. The second
page is plot-2.png, or in the same file if that is a PDF: losses, entropy,
policy lag, replay ratio and waits.
"""

import pathlib

from absl import flags

from seedrl_jax.lab.plots import plotting
from seedrl_jax.lab.studies import results
from seedrl_jax.launch import program
from seedrl_jax.runtime import workdir

_WORKDIR = flags.DEFINE_multi_string(
  'workdir', [], "As arguments: a run's work directory, or a folder above some."
)
_OUT = flags.DEFINE_string(
  'out', '', 'File to draw to; by default plot.png in the first folder named.'
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
  out = pathlib.Path(_OUT.value)
  if not _OUT.value:
    out = workdir.Workdir(_WORKDIR.value[0]).path / 'plot.png'
    workdir.refuse_links(out, out.with_stem('plot-2'))
  runs: list[pathlib.Path] = []
  for folder in map(workdir.Workdir, _WORKDIR.value):
    is_run = folder.metrics_csv.exists()
    runs += [folder.path] if is_run else results.find([str(folder.path)])
  for file in plotting.plot(runs, out, _X.value, _SMOOTH.value):
    print(f'plot: {file}')


if __name__ == '__main__':
  program.start(main, program.parse_workdirs, (OSError, ValueError))
