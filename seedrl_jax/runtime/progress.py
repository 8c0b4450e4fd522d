"""What a run shows while it trains and at its end."""

import logging
import os
import pathlib
import re
import shutil
import sys
import textwrap
from typing import TextIO

from seedrl_jax.runtime import process, report

STOLEN = 'time/stolen_share'
# If set, a start prints its parts on standard error.
START_VARIABLE = 'SEEDRL_TELL_START'
# A share of stolen time that is worth a word.
_MUCH_STOLEN = 0.1
_BAR_WIDTH = 20
_GREEN, _YELLOW, _BOLD = '\x1b[32m', '\x1b[33m', '\x1b[1m'
# Of first words.
_STYLES = {
  'Environment': _BOLD,
  'Agent': _BOLD,
  'Store': _BOLD,
  'Finished': _GREEN,
  'Stopped': _YELLOW,
  'Warning': _YELLOW,
  'Failed': process.RED,
}


def ready(part: str) -> None:
  """Tells seedrl benchmark that a part of a run's start is done."""
  if os.environ.get(START_VARIABLE):
    print(f'Ready: {part}.', file=sys.stderr, flush=True)


class ProgressLine:
  """A line that changes on a terminal, and plain lines elsewhere.

  On a terminal the cursor waits in an empty row above the line, where the
  output of other processes and the `^C` of Ctrl-C appear.

  It prints nothing more once the output is closed (`train.py | head`).
  """

  def __init__(self, out: TextIO | None = None):
    self._out = out or sys.stdout
    self._is_live = process.takes_codes(self._out)
    self._is_shown = False

  def update(self, text: str, done: float | None = None) -> None:
    """Shows `text` in place of what was shown before.

    On a terminal, a bar before it shows the share `done`, 0..1.
    """
    if not self._is_live:
      process.write(self._out, text + '\n')
      return
    if not self._is_shown:
      self._is_shown = True
      for handler in logging.getLogger().handlers:
        handler.addFilter(self._make_room)
    text, filled = process.printable(text), 0
    if done is not None:
      filled = round(done * _BAR_WIDTH)
      text = f'{filled * "█"}{(_BAR_WIDTH - filled) * "░"} {text}'
    # Rows that the terminal wraps could not be counted.
    columns = max(1, shutil.get_terminal_size().columns - 1)
    first, *others = textwrap.wrap(text, columns) or ['']
    first = _styled(first[:filled], _GREEN) + first[filled:]
    rows = '\n'.join([process.CLEAR, first, *others])
    process.write(self._out, '', f'{rows}\x1b[{len(others) + 1}A\r')

  def say(self, text: str) -> None:
    """Prints a line that stays."""
    if not self._is_live:
      process.write(self._out, text + '\n')
      return
    self.clear()
    text = process.printable(text)
    word = re.split(r'\W', text, maxsplit=1)[0]
    text = _styled(word, _STYLES.get(word, '')) + text[len(word) :]
    process.write(self._out, '', text + '\n')

  def clear(self) -> None:
    """Removes the text of `update` from a terminal."""
    if self._is_shown:
      self._is_shown = False
      for handler in logging.getLogger().handlers:
        handler.removeFilter(self._make_room)
      process.write(self._out, '', process.CLEAR)

  def _make_room(self, record: logging.LogRecord) -> bool:
    """Clears the terminal below the cursor for a log message of many lines."""
    del record
    process.write(self._out, '', process.CLEAR)
    return True


def _styled(text: str, style: str) -> str:
  return f'{style}{text}{process.PLAIN}' if style and text else text


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
    f'return {decimal(row["rollout/return"], 1)} '
    f'(eval {decimal(row["eval/return"], 1)}) | '
    f'{format_count(row[report.UPDATES] or 0)} updates | '
    f'lag {decimal(row["replay/policy_lag_mean_batches"], 1)} | '
    f'waits for {waits_for}'
  )
  if (stolen := row[STOLEN] or 0) > _MUCH_STOLEN:
    text += f' | {stolen:.0%} stolen by other guests'
  return text


def decimal(value: float | None, digits: int) -> str:
  """Returns a number with `digits` decimal places; '-' for None."""
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
    f'{decimal(summary.mean_return_100, 2)}; evaluation (last '
    f'{report.EVAL_WINDOW}): {decimal(summary.eval_mean_return, 2)}.\n'
    f'{waits.report()}\n'
    f'Curves: {workdir}/metrics.csv; draw them with\n'
    f'  {_program()} plot --workdir={workdir}'
  )


def _program() -> str:
  """Returns the command `seedrl`, with its folder if PATH lacks that."""
  path = pathlib.Path(sys.executable).with_name('seedrl')
  return 'seedrl' if shutil.which('seedrl') or not path.exists() else f'{path}'
