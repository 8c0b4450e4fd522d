"""Reports on many runs: tasks, seeds and algorithms.

  seedrl report runs/a runs/b [--out=FOLDER]

Takes runs' work directories, folders above them, and quoted patterns of them.
Writes report.md, figures and scores.csv; docs/reports.md says how to read them.
"""

import pathlib

from absl import flags

from seedrl_jax.lab.studies import report
from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import workdir

_WORKDIR = flags.DEFINE_multi_string(
  'workdir', [], "As arguments: a run's work directory, or a folder above some."
)
_OUT = flags.DEFINE_string(
  'out', '', 'Folder to write to; by default report/ in the first one named.'
)


def main() -> None:
  """Writes the report."""
  folders = _WORKDIR.value
  if not folders:
    raise ValueError('name runs, or folders above them.')
  out = pathlib.Path(_OUT.value or pathlib.Path(folders[0], 'report'))
  if not _OUT.value:
    workdir.refuse_links(out, *out.glob('*'))
  report.write(folders, out, config_flag.shipped())
  print(f'report: {out / "report.md"}')


if __name__ == '__main__':
  program.start(main, program.parse_workdirs, (OSError, ValueError))
