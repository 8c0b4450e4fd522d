"""Counters of all workers, in memory that all of them have.

Each worker writes only its own row, so no row needs a lock.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from seedrl_jax.runtime import report
from seedrl_jax.workers import memory

_FIELDS = {
  field.name: float if field.type in (float, 'float') else int
  for field in dataclasses.fields(report.Snapshot)
}
# Staleness, in versions, is counted up to the last of these bins.
_BINS = 1024
_EPISODES = report.WINDOW
_ROW = np.dtype([
  # Counters of a worker's earlier processes, and of its present one.
  ('before', 'f8', len(_FIELDS)),
  ('figures', 'f8', len(_FIELDS)),
  ('episodes', 'f8', (_EPISODES, 3)),
  ('num_episodes', 'i8'),
  ('updates', 'i8'),
  # The newest version of a parameter server that the worker has received.
  ('version', 'i8'),
  # Of the server's present processes, in the worker's last replies.
  ('shards_cpu', 'f8'),
  ('stale', 'i8'),
  ('outlying', 'i8'),
  ('lost', 'i8'),
  ('lock_wait', 'f8'),
  # Of gradients and parameters to and from the worker.
  ('bytes', 'i8'),
  ('staleness', 'i8', _BINS),
])
# The only counter that is of the present process alone.
_NUM_ENVS = list(_FIELDS).index('num_envs')


class Board:
  """The rows of all workers, and when the target network was last updated."""

  def __init__(
    self,
    count: int,
    index: int = 0,
    fd: int | None = None,
    version: int = 0,
    num_models: int = 0,
  ):
    """Makes the board, or opens that of `fd` as worker `index`.

    The last `num_models` workers train a model while the others act.
    """
    self._memory = memory.Memory([(_ROW, (count,)), ('i8', (3,))], fd)
    rows, self._numbers = self._memory.arrays
    self._rows = rows.view(np.recarray)
    self.fd, self.index = self._memory.fd, index
    # This worker's row.
    self.row: Any = self._rows[index]
    self._num_acting = count - num_models
    if fd is None:
      # Versions of the start and of the target's last update, and whether the
      # run has ended (1) or failed (2).
      self._numbers[:] = version, version, 0
    # Number of each worker's episodes that `read_figures` has returned.
    self._num_read = [0] * count

  def set_ended(self, has_failed: bool = False) -> None:
    """Tells all workers that the run ends, or cannot go on."""
    self._numbers[2] = max(self._numbers[2], 2 if has_failed else 1)

  def has_ended(self) -> bool:
    return bool(self._numbers[2])

  def has_failed(self) -> bool:
    return bool(self._numbers[2] == 2)

  def version(self) -> int:
    """Returns the updates so far, of all workers."""
    counted = int(self._numbers[0] + self._rows.updates.sum())
    # A parameter server counts by itself.
    return max(counted, int(self._rows.version.max()))

  def is_ahead(self) -> bool:
    """Whether this worker trains a model and must wait for those that act.

    It makes no more updates than they do on average. Otherwise it would take
    more than its share of what the replay's ratio allows.
    """
    if self.index < self._num_acting:
      return False
    # Gradients that each worker has applied.
    applied = self._rows.staleness.sum(axis=1)
    return bool(applied[self.index] > applied[: self._num_acting].mean())

  def target_is_due(self, period: int) -> bool:
    """Whether the target's update is due, at multiples of `period`.

    True once for each, except that two workers may both get it at once.
    """
    version = self.version()
    if not period or version // period == self._numbers[1] // period:
      return False
    self._numbers[1] = version
    return True

  def count(self, age: int) -> None:
    """Counts a gradient that is applied, `age` versions old."""
    self.row.staleness[min(age, _BINS - 1)] += 1

  def write_figures(self, figures: Mapping[str, Any]) -> None:
    """Writes a worker's counters, those of `reporting.RunCounters.local`."""
    row = self.row
    row.figures = [figures[name] for name in _FIELDS]
    for episode in figures.get('episodes', ()):
      row.episodes[row.num_episodes % _EPISODES] = episode
      row.num_episodes += 1

  def read_figures(self) -> list[dict[str, Any]]:
    """Returns all workers' counters, and each of their episodes only once."""
    all_figures = []
    for index, row in enumerate(self._rows):
      values = row.before + row.figures
      figures: dict[str, Any] = {
        name: kind(value)
        for (name, kind), value in zip(_FIELDS.items(), values, strict=True)
      }
      if not self.index:
        count = int(row.num_episodes)
        new = range(max(self._num_read[index], count - _EPISODES), count)
        figures['episodes'] = row.episodes[
          [i % _EPISODES for i in new]
        ].tolist()
        self._num_read[index] = count
      all_figures.append(figures)
    return all_figures

  def restart(self, index: int) -> None:
    """Keeps the counters of a worker's process that has ended."""
    row = self._rows[index]
    row.before += row.figures
    row.before[_NUM_ENVS] = row.figures[:] = 0.0

  def metrics(self) -> dict[str, float]:
    """Returns the metrics of all workers together, since their start."""
    bins = self._rows.staleness.sum(axis=0)
    applied, rows = max(int(bins.sum()), 1), self._rows
    stale, outlying, lost = (
      int(rows[name].sum()) for name in ('stale', 'outlying', 'lost')
    )
    percentile = int(np.searchsorted(np.cumsum(bins), 0.99 * bins.sum()))
    discarded = stale + outlying + lost
    total = max(int(bins.sum()) + discarded, 1)
    models = int(rows.staleness[self._num_acting :].sum())
    return {
      'asynchronous/staleness_mean': float(bins @ np.arange(_BINS)) / applied,
      'asynchronous/staleness_p99': float(percentile),
      'asynchronous/discarded_share': discarded / total,
      'asynchronous/model_share': models / applied,
      'asynchronous/stale_gradients': float(stale),
      'asynchronous/outlying_gradients': float(outlying),
      'asynchronous/lost_gradients': float(lost),
      'asynchronous/lock_wait_s': float(rows.lock_wait.sum()),
      'asynchronous/shards_cpu_s': float(rows.shards_cpu.max()),
      'asynchronous/bytes': float(rows['bytes'].sum()),
    }
