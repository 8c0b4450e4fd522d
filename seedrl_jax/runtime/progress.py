"""What a run shows while it trains and at its end."""

import os
import pathlib
import shutil
import sys
import textwrap
from typing import TextIO

from seedrl_jax.runtime import process, report

STOLEN = 'time/stolen_share'
# A share of stolen time that is worth a word.
_MUCH_STOLEN = 0.1


class ProgressLine:
  """A line that changes on a terminal, and plain lines elsewhere.

  It prints nothing more once the output is closed (`train.py | head`).
  """

  def __init__(self, out: TextIO | None = None):
    self._out = out or sys.stdout
    self._live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
    self._rows = 0

  def update(self, text: str) -> None:
    """Shows `text` in place of what was shown before."""
    if self._live:
      # Rows that the terminal wraps could not be cleared.
      rows = textwrap.wrap(text, max(1, shutil.get_terminal_size().columns - 1))
      process.write(self._out, '\n'.join(rows), self._cleared())
      self._rows = len(rows)
    else:
      process.write(self._out, text + '\n')

  def say(self, text: str) -> None:
    """Prints a line that stays."""
    process.write(self._out, text + '\n', self._cleared())

  def _cleared(self) -> str:
    """Returns the codes that clear the text of `update`."""
    rows, self._rows = self._rows, 0
    return (f'\x1b[{rows - 1}A' if rows > 1 else '') + '\r\x1b[J' * bool(rows)


def format_count(value: float) -> str:
  """Returns a short count, such as 950, 12.3k or 4.56M."""
  # Rounded before the unit is chosen: 999,999 is 1M.
  rounded = float(f'{value:.3g}')
  for limit, scale, unit in ((1e9, 1e9, 'G'), (1e6, 1e6, 'M'), (1e4, 1e3, 'k')):
    if abs(rounded) >= limit:
      return f'{rounded / scale:g}{unit}'
  return f'{value:.0f}'


def progress_text(row: report.Row, total_frames: int, waits_for: str) -> str:
  """Returns a row of `Reporter.row` as the progress line."""
  frames = row[report.FRAMES] or 0
  text = (
    f'{format_count(frames)}/{format_count(total_frames)} '
    f'frames ({frames / total_frames:.0%}) | '
    f'{format_count(row["time/frames_per_s"] or 0)} frames/s | '
    f'return {_decimal(row["rollout/return"], 1)} '
    f'(eval {_decimal(row["eval/return"], 1)}) | '
    f'{format_count(row[report.UPDATES] or 0)} updates | '
    f'lag {_decimal(row["replay/policy_lag_mean_batches"], 1)} | '
    f'waits for {waits_for}'
  )
  if (stolen := row[STOLEN] or 0) > _MUCH_STOLEN:
    text += f' | {stolen:.0%} stolen by other guests'
  return text


def _decimal(value: float | None, digits: int) -> str:
  return '-' if value is None else f'{value:.{digits}f}'


def summary_text(
  summary: report.Summary, waits: report.Waits, workdir: pathlib.Path
) -> str:
  """Returns the lines that a run ends with; `waits` are of this start."""
  status = summary.status.partition(':')[0].capitalize()
  return (
    f'{status} after {summary.env_frames} frames in '
    f'{summary.seconds:.1f} s '
    f'({format_count(summary.frames_per_second)} frames/s), '
    f'{summary.updates} updates.\n'
    f'Mean return of the last {report.WINDOW} episodes: '
    f'{_decimal(summary.mean_return_100, 2)}; evaluation (last '
    f'{report.EVAL_WINDOW}): {_decimal(summary.eval_mean_return, 2)}.\n'
    f'{waits.report()}\n'
    f'Curves: {workdir}/metrics.csv; draw them with\n'
    f'  seedrl plot --workdir={workdir}'
  )
