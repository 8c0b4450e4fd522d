"""What a run says while it works: the progress line and the wait report."""

import contextlib
import dataclasses
import os
import shutil
import sys
import textwrap
from typing import TextIO

# Shares of the time under which a wait is not worth a word.
_BLOCKED = 0.1


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
    """Returns which part sets the pace: 'learner', 'envs' or 'inference'.

    Whoever fills the store waits for the learner only when the learner is the
    slowest. Otherwise the pace is set before the store: by the environments
    where inference waits for them for longer than it works.
    """
    if self.inference_for_learner > _BLOCKED:
      return 'learner'
    if self.inference_for_envs > 0.5:
      return 'envs'
    return 'inference'

  def report(self) -> str:
    """Returns the shares and the bottleneck in one line."""
    name = {
      'learner': 'the learner (inference waits for room in the store)',
      'envs': 'the environments (inference waits for them)',
      'inference': 'inference (environments wait for their actions)',
    }[self.bottleneck()]
    return (
      f'bottleneck: {name}; waiting: environments '
      f'{self.envs_for_actions:.0%}, inference '
      f'{self.inference_for_envs:.0%} for environments and '
      f'{self.inference_for_learner:.0%} for the learner, learner '
      f'{self.learner_for_data:.0%} for data'
    )

  def short(self) -> str:
    """Returns what the pipeline waits for, for the progress line."""
    return {
      'learner': f'learner ({self.inference_for_learner:.0%})',
      'envs': f'envs ({self.inference_for_envs:.0%})',
      'inference': f'inference ({self.envs_for_actions:.0%})',
    }[self.bottleneck()]


class ProgressLine:
  """One live line, or as many as it needs, on a terminal; else plain lines."""

  def __init__(self, out: TextIO | None = None):
    """Writes to `out`, standard output unless given."""
    self._out = out or sys.stdout
    self._live = self._out.isatty() and os.environ.get('TERM') != 'dumb'
    self._rows = 0

  def update(self, text: str) -> None:
    """Shows `text` in place of what was shown before."""
    if self._live:
      # Cut into rows here: where the terminal wraps, none could be taken back.
      rows = textwrap.wrap(text, max(1, shutil.get_terminal_size().columns - 1))
      self._clear()
      self._write('\n'.join(rows))
      self._rows = len(rows)
    else:
      self._write(text + '\n')

  def say(self, text: str) -> None:
    """Prints a line that stays."""
    self._clear()
    self._write(text + '\n')

  def _clear(self) -> None:
    """Takes back what `update` shows: up to its first row, then wipe."""
    if self._rows > 1:
      self._write(f'\x1b[{self._rows - 1}A')
    if self._rows:
      self._write('\r\x1b[J')
    self._rows = 0

  def _write(self, text: str) -> None:
    # Whoever read may be gone; the run goes on.
    with contextlib.suppress(OSError):
      self._out.write(text)
      self._out.flush()


def format_count(value: float) -> str:
  """Returns a count as people read it: 950, 12.3k, 4.56M."""
  # Before the unit is chosen: 999,999 is 1M.
  rounded = float(f'{value:.3g}')
  for limit, scale, unit in ((1e9, 1e9, 'G'), (1e6, 1e6, 'M'), (1e4, 1e3, 'k')):
    if abs(rounded) >= limit:
      return f'{rounded / scale:g}{unit}'
  return f'{value:.0f}'
