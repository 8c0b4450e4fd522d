"""Reports on many runs: tasks, seeds and algorithms.

  seedrl report runs/a runs/b [--out=FOLDER]

Takes runs' work directories, folders above them, and quoted patterns of them.
Writes report.md, figures and scores.csv; docs/reports.md says how to read them.
"""

import pathlib

from absl import flags

from seedrl_jax.lab.studies import records, report, results
from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import workdir

_WORKDIR = flags.DEFINE_multi_string(
  'workdir', [], "As arguments: a run's work directory, or a folder above some."
)
_OUT = flags.DEFINE_string(
  'out', '', 'Folder to write to; by default report/ in the first one named.'
)
_RESULTS = flags.DEFINE_string(
  'results',
  '',
  'File of results, such as docs/results.csv, to which to add the runs, or in '
  'which to replace their rows; they need `seedrl evaluate --save`.',
)


def main() -> None:
  """Writes the report, and the rows of results."""
  folders = _WORKDIR.value
  if not folders:
    raise ValueError('name runs, or folders above them.')
  out = pathlib.Path(_OUT.value or pathlib.Path(folders[0], 'report'))
  if not _OUT.value:
    workdir.refuse_links(out, *out.glob('*'))
  known = config_flag.shipped()
  report.write(folders, out, known)
  if _RESULTS.value:
    runs = results.gather(folders)
    records.update(pathlib.Path(_RESULTS.value), runs, known)
  print(f'report: {out / "report.md"}')


if __name__ == '__main__':
  program.start(main, program.parse_workdirs, (OSError, ValueError))
