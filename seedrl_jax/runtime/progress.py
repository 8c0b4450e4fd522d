"""What a run says while it works: the progress line and the wait report."""

import dataclasses
import os
import shutil
import sys
import textwrap
from typing import TextIO

# Shares of the time under which a wait for room is not worth a word, and over
# which both sides of the store wait for it.
_BLOCKED = 0.1
_BOTH_BLOCKED = 0.25
# What `Waits.report` says of each part that may set the pace.
_SENTENCES = {
  'learner': 'the learner (inference waits for room in the store)',
  'store': 'the store (inference waits for room in it, the learner for data)',
  'envs': 'the environments (inference waits for them)',
  'inference': 'inference (environments wait for their actions)',
}


@dataclasses.dataclass(frozen=True)
class Waits:
  """Shares of the time, 0..1, in which each part waited for another.

  Attributes:
    envs_for_actions: environments, on average, from the arrival of their step
      to the departure of its action.
    inference_for_envs: inference threads, for a batch of steps.
    inference_for_learner: inference threads, for room in the store.
    learner_for_data: the learner, for a batch.
  """

  envs_for_actions: float
  inference_for_envs: float
  inference_for_learner: float
  learner_for_data: float

  def bottleneck(self) -> str:
    """Returns what sets the pace: 'learner', 'store', 'envs' or 'inference'.

    Of two that meet, the one that waits less for the other is the slower. At
    the store these are inference and the learner, be it a queue or a replay
    that holds back whoever runs ahead of its ratio. If both wait long, what is
    between them is slow, or so small that they take turns. If the learner
    waits for longer, acting is slow: environments or inference.
    """
    room, data = self.inference_for_learner, self.learner_for_data
    if min(room, data) > _BOTH_BLOCKED:
      return 'store'
    if room > max(data, _BLOCKED):
      return 'learner'
    if self.inference_for_envs > self.envs_for_actions:
      return 'envs'
    return 'inference'

  def report(self) -> str:
    """Returns the shares and the bottleneck in one line."""
    return (
      f'bottleneck: {_SENTENCES[self.bottleneck()]}; waiting: environments '
      f'{self.envs_for_actions:.0%}, inference '
      f'{self.inference_for_envs:.0%} for environments and '
      f'{self.inference_for_learner:.0%} for the learner, learner '
      f'{self.learner_for_data:.0%} for data'
    )

  def short(self) -> str:
    """Returns what the pipeline waits for, for the progress line."""
    name = self.bottleneck()
    share = {
      'learner': self.inference_for_learner,
      'store': min(self.inference_for_learner, self.learner_for_data),
      'envs': self.inference_for_envs,
      'inference': self.envs_for_actions,
    }[name]
    return f'{name} ({share:.0%})'


class ProgressLine:
  """One live line, or as many as it needs, on a terminal; else plain lines.

  When nobody reads any more (`train.py | head`), it falls silent.
  """

  def __init__(self, out: TextIO | None = None):
    """Writes to `out`, standard output unless given."""
    self._out = out or sys.stdout
    self._live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
    self._rows = 0
    self._is_closed = False

  def update(self, text: str) -> None:
    """Shows `text` in place of what was shown before."""
    if self._live:
      # Cut into rows here: where the terminal wraps, none could be taken back.
      rows = textwrap.wrap(text, max(1, shutil.get_terminal_size().columns - 1))
      self._write(self._cleared() + '\n'.join(rows))
      self._rows = len(rows)
    else:
      self._write(text + '\n')

  def say(self, text: str) -> None:
    """Prints a line that stays."""
    self._write(self._cleared() + text + '\n')

  def _cleared(self) -> str:
    """Returns what takes back `update`'s text: up to its first row, wipe."""
    rows, self._rows = self._rows, 0
    return (f'\x1b[{rows - 1}A' if rows > 1 else '') + '\r\x1b[J' * bool(rows)

  def _write(self, text: str) -> None:
    if self._is_closed:
      return
    try:
      self._out.write(text)
      self._out.flush()
    except (OSError, ValueError):
      # The other end is closed, or this one. A run goes on without.
      self._is_closed = True


def format_count(value: float) -> str:
  """Returns a count as people read it: 950, 12.3k, 4.56M."""
  # Before the unit is chosen: 999,999 is 1M.
  rounded = float(f'{value:.3g}')
  for limit, scale, unit in ((1e9, 1e9, 'G'), (1e6, 1e6, 'M'), (1e4, 1e3, 'k')):
    if abs(rounded) >= limit:
      return f'{rounded / scale:g}{unit}'
  return f'{value:.0f}'
