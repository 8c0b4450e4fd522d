"""Reports on many runs: tasks, seeds and algorithms.

  seedrl report runs/a runs/b [--out=FOLDER]

Takes runs' work directories, or folders above them. Writes report.md, figures
and scores.csv; docs/reports.md says how to read them.
"""

import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags

from seedrl_jax.lab.studies import report
from seedrl_jax.launch import config_flag, program
from seedrl_jax.runtime import workdir

_OUT = flags.DEFINE_string(
  'out', '', 'Folder to write to; by default report/ in the first one named.'
)


def main(argv: Sequence[str]) -> None:
  """Writes the report; exits with a message if it cannot."""
  if len(argv) < 2:
    raise app.UsageError('Name runs, or folders above them: report.py DIR...')
  out = pathlib.Path(_OUT.value or pathlib.Path(argv[1], 'report'))
  try:
    if not _OUT.value:
      workdir.refuse_links(out, *out.glob('*'))
    report.write(argv[1:], out, config_flag.shipped())
  except (OSError, ValueError) as e:
    sys.exit(f'report: {e}')
  print(f'report: {out / "report.md"}')


if __name__ == '__main__':
  program.run(main)
