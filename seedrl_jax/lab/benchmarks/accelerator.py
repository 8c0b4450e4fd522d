"""Measures an accelerator: stages, whole runs, and how they meet the targets.

All is done in one process, as JAX reserves most of a GPU's memory for each, and
within a time: what does not fit in is named.
"""

import functools
import gc
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import NamedTuple, Self, TypeVar

from seedrl_jax.envs import factory
from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import timing, whole

OUT_OF_TIME = 'not measured: out of time'
_REASON_LENGTH = 160
_COLUMNS = (
  'envs',
  'environments, steps/s',
  '+ inference',
  '+ training',
  'of the ideal',
  'trained on',
  'of EnvPool',
  'frames/s',
  'steal',
  'waits',
)

_T = TypeVar('_T')


class NotMeasured(Exception):
  """There is no figure; the message is the reason."""


class Session:
  """Does one piece of work after the other until there is no time left.

  As a context, it ends the process if the last piece does not end.
  """

  def __init__(self, seconds: float):
    self._end = time.monotonic() + seconds
    self._executor = futures.ThreadPoolExecutor(1, 'measure')
    self._is_working = False

  def __enter__(self) -> Self:
    return self

  def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
    if self._is_working:
      # Nothing can stop a compiler.
      sys.stdout.flush()
      os._exit(0 if kind is None else 1)
    self._executor.shutdown()

  def do(self, work: Callable[[], _T]) -> _T:
    """Returns what `work` returns; raises NotMeasured if it fails or is late.

    No further work is begun after late work, which goes on.
    """
    # Frees what earlier work had on the devices.
    gc.collect()
    left = self._end - time.monotonic()
    if self._is_working or left <= 0:
      raise NotMeasured(OUT_OF_TIME)
    self._is_working = True
    future = self._executor.submit(work)
    self._is_working = not futures.wait([future], left).done
    if self._is_working:
      raise NotMeasured(OUT_OF_TIME)
    if (error := future.exception()) is not None:
      # Without the error, whose frames hold arrays.
      raise NotMeasured(_reason(error))
    return future.result()


def _reason(error: BaseException) -> str:
  """Returns one line; a failed run's text is the traceback of a thread."""
  text = f'{type(error).__name__}: {error}'
  named = re.findall(r'^[\w.]*Error\b.*', text, re.MULTILINE)
  return (named or text.splitlines())[-1][:_REASON_LENGTH]


class Figures(NamedTuple):
  """What a run made.

  Attributes:
    frames: per second.
    share: of the steps per second of its environments alone; None if these
      cost nothing.
  """

  frames: float
  share: float | None


class Target(NamedTuple):
  """A figure to reach in one of the cases whose names begin with `prefix`."""

  name: str
  prefix: str
  goal: float
  is_share: bool = False


TARGETS = (
  Target("share of EnvPool's steps/s", 'pong', 0.9, is_share=True),
  Target('frames/s: Pong, Nature network', 'pong_nature', 28_000),
  Target('frames/s: ResNet (SEED, 8 TPU v3 cores)', 'free_resnet', 330_000),
  Target('frames/s: ResNet (SEED, 64)', 'free_resnet', 2_400_000),
  Target('frames/s: R2D2', 'free_r2d2', 67_000),
)


def measure(
  session: Session,
  cases: Sequence[whole.Case],
  stages: timing.Windows,
  windows: timing.Windows,
) -> None:
  """Prints the stages of each case, then whole runs and the targets.

  Args:
    stages: windows of each stage.
    windows: of each run.
  """
  figures: dict[str, Figures] = {}
  rows = list(_rows(session, cases, figures, stages, windows))
  tables.show(rows)
  tables.show(target_rows(figures))


def _rows(
  session: Session,
  cases: Sequence[whole.Case],
  figures: dict[str, Figures],
  stages: timing.Windows,
  windows: timing.Windows,
) -> Iterator[tables.Row]:
  """Yields a row for each case; adds its figures."""
  for case in cases:
    row = {'case': case.name} | dict.fromkeys(_COLUMNS, '-')
    try:
      measured, figures[case.name] = session.do(
        functools.partial(_measure_run, case, stages, windows)
      )
      yield row | measured
    except NotMeasured as e:
      yield row | {_COLUMNS[-1]: str(e)}


def _measure_run(
  case: whole.Case, stages: timing.Windows, windows: timing.Windows
) -> tuple[tables.Row, Figures]:
  alone = whole.measure_stages(case, stages)
  result = whole.run(case, windows)
  steps = result.steps.median
  figures = Figures(
    steps * factory.make_spec(case.config.env).action_repeat,
    None if case.streams else steps / alone.env.median,
  )
  row = whole.row(case, result, alone) | {
    'trained on': f'{result.trained_share:.2f}',
    'of EnvPool': _text(figures.share),
    'frames/s': _text(figures.frames),
    'waits': result.waits,
  }
  return {name: row[name] for name in _COLUMNS}, figures


def target_rows(figures: Mapping[str, Figures]) -> Iterator[tables.Row]:
  """Yields a table row for each target with the best case's figure."""
  for target in TARGETS:
    values = {
      name: x.share if target.is_share else x.frames
      for name, x in figures.items()
      if name.startswith(target.prefix)
    }
    value, case = max(
      ((x, name) for name, x in values.items() if x is not None),
      default=(None, 'not measured'),
    )
    yield {
      'target': target.name,
      'at least': _text(target.goal),
      'measured': _text(value),
      'of the target': _text(value and value / target.goal),
      'case': case,
    }


def _text(figure: float | None) -> str:
  """Returns a share or factor with two digits, a speed without."""
  if figure is None:
    return '-'
  return f'{figure:,.0f}' if figure >= 100 else f'{figure:.2f}'
