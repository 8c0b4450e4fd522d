"""Moves batches to the training devices ahead of the update.

Keeps training on-policy within a bound: masks what is older.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base as replay

_FIRST = np.uint8(types.StepType.FIRST)

# Batches without a recent unroll after which a run has failed; a server that is
# back may bring a few.
_MOST_DROPPED = 20


@dataclasses.dataclass(frozen=True)
class Prefetched:
  """A batch on the training devices; release its sample after the update."""

  batch: types.Batch  # leaves [D, ...]
  sample: replay.Sample
  version_mean: float  # parameter version of its steps
  version_min: int  # the oldest
  dropped_share: float = 0.0  # of its unrolls, as too old


def to_batches(
  sample: replay.Sample, importance_exponent: float = 0.0
) -> list[types.Batch]:
  """Returns a sample as one `types.Batch` for each block.

  Weights are not divided by the largest: another host may have it.
  """
  weights = sample.importance_weights(importance_exponent)
  # Blocks are equally wide.
  parts = np.split(weights, len(sample.blocks))
  pairs = zip(sample.blocks, parts, strict=True)
  return [block.as_batch(part) for block, part in pairs]


class TooOldError(types.Explained, RuntimeError):
  """Nothing was left of many batches."""


class LagFilter:
  """Masks unrolls in which parameters acted that are too old.

  All steps of such an unroll become FIRST, so that none is a transition.
  """

  def __init__(self, max_lag: int, version: int, updates_per_batch: int):
    """`version` is the learner's before it trains on the first batch.

    An unroll of batch n (from 0) needs the parameters after batch
    n - `max_lag` - 1 or later ones.
    """
    self._max_lag = max_lag
    self._updates_per_batch = updates_per_batch
    self._num_dropped = 0  # latest batches that were dropped wholly
    self._oldest = version - max_lag * updates_per_batch

  def __call__(
    self, pieces: Sequence[types.Batch], versions: Sequence[np.ndarray]
  ) -> tuple[list[types.Batch], float]:
    """Returns the next batch, in pieces, and the share that it masked.

    `versions` are the oldest ones that acted in each piece's unrolls, `[W]`.
    Raises TooOldError if nothing was left of many batches.
    """
    old = [x < self._oldest for x in versions]
    self._oldest += self._updates_per_batch
    batches = [_mask(*x) for x in zip(pieces, old, strict=True)]
    share = float(np.concatenate(old).mean())
    self._num_dropped = self._num_dropped + 1 if share == 1.0 else 0
    if self._num_dropped == _MOST_DROPPED:
      raise TooOldError(
        f'All unrolls of {_MOST_DROPPED} batches were older than '
        f'--config.learner.max_lag={self._max_lag} allows; raise it.'
      )
    return batches, share


def _mask(batch: types.Batch, old: np.ndarray) -> types.Batch:
  """Returns a batch without transitions of the unrolls `old`, bool `[W]`."""
  if not old.any():
    return batch
  steps = batch.unroll.steps
  xp = jnp if isinstance(steps.step_type, jax.Array) else np
  step_type = xp.where(old, _FIRST, steps.step_type)
  steps = steps._replace(step_type=step_type)
  return batch._replace(unroll=batch.unroll._replace(steps=steps))


class Prefetcher:
  """A bounded queue of batches that are on their devices.

  One thread calls `run`, another `get`; deterministic runs only `fetch`.
  """

  def __init__(
    self,
    sampler: replay.TrajectorySampler,
    shard: Callable[[Sequence[types.Batch]], types.Batch],
    size: int,
    importance_exponent: float = 0.0,
    lag_filter: LagFilter | None = None,
  ):
    """Holds `size` >= 1 batches ahead; `shard` is `Updater.shard`.

    Without a `lag_filter`, steps may be of any age.
    """
    self._sampler = sampler
    self._shard = shard
    self._size = size
    self._importance_exponent = importance_exponent
    self._lag_filter = lag_filter
    self._ready: collections.deque[Prefetched] = collections.deque()
    self._condition = threading.Condition()
    self._closed = False
    # Whether a batch has been drawn that is not ready.
    self._is_moving = False
    self._waited = 0.0
    self._waiting_since: float | None = None

  @property
  def wait_seconds(self) -> float:
    """Seconds that `get` has waited, including the current wait."""
    since, now = self._waiting_since, time.perf_counter()
    return self._waited + (0.0 if since is None else now - since)

  @property
  def is_empty(self) -> bool:
    """Whether `get` would wait."""
    return not self._ready

  @property
  def is_starved(self) -> bool:
    """Whether `get` waits for a batch that the store does not give."""
    with self._condition:
      return not (self._waiting_since is None or self._ready or self._is_moving)

  def fetch(self, wait: bool = True) -> Prefetched:
    """Draws one batch and moves it to the devices.

    Raises `replay.RateLimited` if the replay has none yet and `wait` is false,
    and `replay.StoreClosed` if the store closes.
    """
    sample = self._sampler.sample(wait)
    self._is_moving = True
    block_versions = [block.versions() for block in sample.blocks]
    pieces = to_batches(sample, self._importance_exponent)
    dropped_share = 0.0
    if self._lag_filter is not None:
      oldest = [x.min(axis=0) for x in block_versions]
      pieces, dropped_share = self._lag_filter(pieces, oldest)
    versions = np.concatenate([x.reshape(-1) for x in block_versions])
    # Without those of demonstrations.
    versions = versions[versions != types.NO_VERSION]
    return Prefetched(
      batch=self._shard(pieces),
      sample=sample,
      version_mean=float(versions.mean()),
      version_min=int(versions.min()),
      dropped_share=dropped_share,
    )

  def run(self, should_stop: Callable[[], bool]) -> None:
    """Keeps the queue full until `should_stop` or `close`."""
    while not should_stop():
      with self._condition:
        self._condition.wait_for(
          lambda: self._closed or len(self._ready) < self._size
        )
        if self._closed:
          return
      self._put(self.fetch())

  def get(self) -> Prefetched:
    """Waits for the next batch; raises StoreClosed if closed meanwhile."""
    with self._condition:
      self._waiting_since = start = time.perf_counter()
      self._condition.wait_for(lambda: self._closed or self._ready)
      self._waiting_since = None
      self._waited += time.perf_counter() - start
      if self._closed:
        raise replay.StoreClosed('No further batch: the prefetcher was closed.')
      item = self._ready.popleft()
      self._condition.notify_all()
      return item

  def _put(self, item: Prefetched) -> None:
    with self._condition:
      self._is_moving = False
      if self._closed:
        item.sample.release()
        return
      self._ready.append(item)
      self._condition.notify_all()

  def close(self) -> None:
    """Wakes all waiters and releases the remaining batches."""
    with self._condition:
      self._closed = True
      while self._ready:
        self._ready.popleft().sample.release()
      self._condition.notify_all()
