"""Searches for the fastest settings of a run on this machine.

A machine's speed drifts, as others use it too. So a candidate alternates
with the best so far, and is taken only if it is faster in almost every turn.
"""

import contextlib
import functools
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import ml_collections

from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import ceilings, timing
from seedrl_jax.lab.benchmarks import knobs as knobs_lib
from seedrl_jax.lab.benchmarks import turns as turns_lib
from seedrl_jax.lab.benchmarks.knobs import Changes
from seedrl_jax.lab.benchmarks.turns import Window
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.run import system
from seedrl_jax.runtime import steal

# A candidate may lose at most `_MISSES` of `_TURNS` rounds. One that is as fast
# as the best passes by chance in one of thirty cases.
_TURNS, _MISSES = 8, 1
# What is faster by less is not worth a flag.
_MARGIN = 1.03
# Windows of the default and of each of its stages.
_WINDOWS = 3
# Share of the processor time.
_MUCH_STOLEN = 0.02

# Opens a run with changes.
OpenRun = Callable[[Changes], contextlib.AbstractContextManager[Window]]
# Returns changes of the best so far, the most promising first.
Propose = Callable[[Changes], Sequence[Changes]]


class Turns(NamedTuple):
  """Steps per second of two runs in windows that took turns."""

  old: list[float]
  new: list[float]

  @property
  def is_decided(self) -> bool:
    """Whether further turns cannot change `is_faster`."""
    return self._misses > _MISSES or len(self.new) >= _TURNS

  @property
  def is_faster(self) -> bool:
    """Whether the new run was faster in (almost) every turn."""
    return len(self.new) >= _TURNS and self._misses <= _MISSES

  @property
  def _ratios(self) -> list[float]:
    return [n / o for o, n in zip(self.old, self.new, strict=True)]

  @property
  def _misses(self) -> int:
    return sum(ratio < _MARGIN for ratio in self._ratios)

  def text(self) -> str:
    """Returns the median ratio and its spread, of at least one turn."""
    return tables.spread(self._ratios, 2)


class Search:
  """A search for the best changes within a time; close it at the end.

  Attributes:
    best: changes of the default so far.
    tried: number of candidates that are decided on.
    ended_early: whether there was no time for others.
  """

  def __init__(
    self,
    open_run: OpenRun,
    seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
  ):
    """`say` is called with a line for each candidate."""
    self.best: Changes = {}
    self.tried, self.ended_early = 0, False
    self._open_run, self._say, self._clock = open_run, say, clock
    self._end = clock() + seconds
    self._open_seconds = self._turn_seconds = 0.0
    self._cleanup = contextlib.ExitStack()
    self._window = self._open({}, self._cleanup)
    self._candidates = [self.best]

  def close(self) -> None:
    """Ends the run that is open."""
    self._cleanup.close()

  def rate(self) -> float:
    """Returns the best's steps per second; call it before `run`."""
    start = self._clock()
    rates = [self._window() for _ in range(_WINDOWS)]
    self._turn_seconds = 2 * (self._clock() - start) / _WINDOWS
    return statistics.median(rates)

  def run(self, knobs: Sequence[Propose]) -> None:
    """Tries what each knob proposes, over and over until nothing is taken."""
    before = None
    while self.best != before:
      before = self.best
      for propose in knobs:
        self._improve(propose)

  def confirm(self) -> Turns:
    """Measures the default, opened anew, and the best alternately."""
    turns = Turns([], [])
    with contextlib.ExitStack() as cleanup:
      default = self._open({}, cleanup)
      for _ in range(_TURNS):
        self._take_turn(turns, default, self._window)
    return turns

  def _open(self, changes: Changes, cleanup: contextlib.ExitStack) -> Window:
    start = self._clock()
    window = cleanup.enter_context(self._open_run(changes))
    self._open_seconds = self._clock() - start
    return window

  def _take_turn(self, turns: Turns, old: Window, new: Window) -> None:
    start = self._clock()
    pair = [(turns.old, old), (turns.new, new)]
    # So that a steady drift favours neither.
    for rates, window in pair[:: 1 if len(turns.new) % 2 else -1]:
      rates.append(window())
    self._turn_seconds = self._clock() - start

  def _left(self) -> float:
    """Returns the seconds left before the result is to be confirmed."""
    last = self._open_seconds + _TURNS * self._turn_seconds
    return self._end - self._clock() - last

  def _improve(self, propose: Propose) -> None:
    """Takes the first change that is faster, if there is one."""
    for change in propose(self.best):
      candidate = {**self.best, **change}
      if candidate in self._candidates:
        continue
      if self._left() < self._open_seconds + self._turn_seconds:
        self.ended_early = True
        return
      self._candidates.append(candidate)
      if self._try(candidate, flags(change)):
        return

  def _try(self, candidate: Changes, name: str) -> bool:
    """Takes a candidate if it is faster; returns whether it is."""
    turns = Turns([], [])
    try:
      with contextlib.ExitStack() as cleanup:
        window = self._open(candidate, cleanup)
        while not turns.is_decided and self._left() > self._turn_seconds:
          self._take_turn(turns, self._window, window)
        if turns.is_faster:
          self._cleanup.close()
          self._cleanup, self._window = cleanup.pop_all(), window
          self.best = candidate
    except (ValueError, MemoryError, system.RunFailed) as e:
      self._say(f'{name}: not possible: {str(e).splitlines()[0]}')
      return False
    self.tried += turns.is_decided
    self.ended_early |= not turns.is_decided
    comparison = (
      f'{turns.text()} of the best so far' if turns.new else 'no time'
    )
    taken = ', taken' if turns.is_faster else ''
    self._say(
      f'{name}: {comparison}{taken}; {max(0.0, self._left()):.0f} s left'
    )
    return turns.is_faster


def _changed(
  config: ml_collections.ConfigDict, changes: Changes
) -> ml_collections.ConfigDict:
  copy = config.copy_and_resolve_references()
  copy.update_from_flattened_dict(changes)
  return copy


def tune(
  config: ml_collections.ConfigDict,
  window_seconds: float,
  seconds: float,
  say: Callable[[str], None],
) -> None:
  """Searches for the changes that make a run fastest, and prints them.

  Args:
    window_seconds: of a turn.
    seconds: of the search.

  Raises:
    ValueError, RunFailed: if the run cannot be measured without changes.
  """
  stolen = steal.StealClock()

  def open_run(
    changes: Changes,
  ) -> contextlib.AbstractContextManager[Window]:
    return turns_lib.open_run(_changed(config, changes), window_seconds)

  with contextlib.closing(Search(open_run, seconds, say)) as search:
    rate, plan = search.rate(), plan_lib.make_plan(config)
    stages = timing.Windows(_WINDOWS, window_seconds / 2)
    timed = ceilings.measure(config, None, stages)
    resources = timed.resources(plan.topology)
    say(describe(rate, resources))
    run = knobs_lib.describe_run(config, plan, timed)

    def propose(knob: knobs_lib.Knob, best: Changes) -> Sequence[Changes]:
      return knob.propose(run._replace(config=_changed(config, best)))

    knobs = knobs_lib.promising(resources, rate)
    search.run([functools.partial(propose, knob) for knob in knobs])
    for line in result(search):
      say(line)
  if search.best.get('topology.inference_affinity_offset', -1) >= 0:
    say('* Pinned runs must not share a host.')
  if (share := stolen.share()) > _MUCH_STOLEN:
    say(f'* Other guests took {share:.0%} of the processor time.')


def describe(rate: float, resources: knobs_lib.Resources) -> str:
  """Returns a line on what a run does and its stages need."""
  shares = knobs_lib.shares(resources, rate)
  text = ', '.join(f'{stage} {share:.0%}' for stage, share in shares.items())
  return f'default: {rate:,.0f} steps/s; of the time {text}'


def flags(changes: Changes) -> str:
  """Returns changes as flags of a command line."""
  return ' '.join(
    f'--config.{key}={shlex.quote(str(value))}'
    for key, value in changes.items()
  )


def result(search: Search) -> list[str]:
  """Measures what a search found again; returns lines on how good it is."""
  lines = (
    ['Time was up: more --minutes try more.'] if search.ended_early else []
  )
  if not search.tried:
    return [*lines, 'Nothing was tried.']
  if not search.best:
    return [*lines, 'The default is as good as anything that was tried.']
  turns = search.confirm()
  old, new = map(statistics.median, turns)
  lines.append(
    f'default {old:,.0f} steps/s, tuned {new:,.0f}: {turns.text()} of the '
    f'default in {len(turns.new)} turns'
  )
  if not turns.is_faster:
    lines.append('Not in almost every turn: this may be chance.')
  return [*lines, f'flags to paste: {flags(search.best)}']
