"""Writes vtrace_search.csv from runs that differ from each other in one change.

`python docs/write_search.py runs/search/*` takes work directories that are
called by change and game, such as warmup_Boxing. Dead units and deviations are
means of the last ten reports.
"""

import csv
import json
import pathlib
import sys

import numpy as np

_REPORTS = 10
_CHANGES = {
  'shipped': 'none',
  'rmsprop': 'RMSProp, epsilon 0.01 outside the root',
  'sumclip': 'loss summed, clip 40',
  'batch32': 'batches of 32, 64 environments',
  'entropy': 'entropy cost 0.01',
  'warmup': 'warm-up over 1,000 updates',
  'baseline': 'baseline head begins at a hundredth',
  'layernorm': 'layer norm',
  'running': 'advantages divided by their running deviation',
  'rate': 'rate 2.5e-4',
  'nature': "Nature's torso",
  'separate': 'a torso of its own for the value',
  'residual': 'a residual block after each convolution',
  'pixels': 'normalised pixels',
}
_COLUMNS = {
  'dead_share': 'health/dead_share',
  'value_std': 'health/value_std',
  'explained_variance': 'losses/explained_variance',
  'entropy_share': 'health/entropy_share',
}


def row(folder: pathlib.Path) -> dict[str, str]:
  """Returns what a run came to."""
  change, game = folder.name.split('_')
  reports = list(csv.DictReader((folder / 'metrics.csv').open()))
  summary = json.loads((folder / 'summary.json').read_text())
  means = {
    name: np.mean([float(x[column]) for x in reports[-_REPORTS:] if x[column]])
    for name, column in _COLUMNS.items()
  }
  return {
    'change': _CHANGES[change],
    'game': game,
    'frames': str(summary['env_frames']),
    **{name: f'{value:.3g}' for name, value in means.items()},
    'return': f'{summary["mean_return_100"]:.1f}',
  }


if __name__ == '__main__':
  rows = [row(pathlib.Path(name)) for name in sys.argv[1:]]
  rows.sort(key=lambda row: list(_CHANGES.values()).index(row['change']))
  path = pathlib.Path(__file__).parent / 'vtrace_search.csv'
  with path.open('w', newline='') as file:
    writer = csv.DictWriter(file, rows[0], lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
