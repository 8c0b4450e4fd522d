"""A table's rules on the client's side, for whole blocks and batches.

Reverb's rules count single items, and a writer only sees a late
acknowledgement. The client counts too: what passes here soon passes there, and
what may not waits here, where `close` wakes it at once.
"""

import abc
import math
from collections.abc import Callable, Sequence

from seedrl_jax.replay import base, fair_queue, rate_limiter, table_configs


class ClientRateLimiter(abc.ABC):
  """Counts of one table, and the threads that wait for them."""

  config: table_configs.TableConfig

  def __init__(
    self,
    config: table_configs.TableConfig,
    counts: rate_limiter.Counts,
    on_wait: Callable[[], None] = lambda: None,
  ):
    """Assumes an empty table; `on_wait` is called as a wait begins."""
    self.config = config
    self._on_wait = on_wait
    self._gate = fair_queue.TableGate(config.name)
    self._counts = counts
    # Unrolls in the table, including those in flight.
    self._size = 0
    # Changes with the counts.
    self._version = 0
    # Unrolls sent and unacknowledged; drawn and undelivered; acknowledged ever.
    self._unacknowledged = self._undelivered = self._acknowledged = 0
    # See `stalled_version`.
    self._seen: tuple[int, int, int] | None = None

  def admit_insert(self, n: int) -> None:
    """Admits n unrolls; waits and raises as `Table.insert`."""
    with self._gate.lock:
      if not self._can_insert(n):
        self._on_wait()
      self._gate.writers.enter(lambda: self._can_insert(n))
      self._counts.inserts += n
      self._unacknowledged += n
      self._version += 1
      self._add(n)
      self._gate.wake()

  def admit_sample(self, n: int, wait: bool = True) -> None:
    """Admits a batch of n; waits and raises as `TrajectorySampler.sample`."""
    with self._gate.lock:
      if not self._can_sample(n):
        self._on_wait()
      self._gate.samplers.enter(lambda: self._can_sample(n), wait)
      self._counts.samples += n
      self._undelivered += n
      self._version += 1
      self._take(n)
      self._gate.wake()

  def acknowledged(self, n: int) -> None:
    """Counts n admitted unrolls as acknowledged by the server."""
    with self._gate.lock:
      self._unacknowledged = max(0, self._unacknowledged - n)
      self._acknowledged += n
      self._version += 1

  def delivered(self, n: int, times_sampled: Sequence[int]) -> None:
    """Counts n unrolls as delivered; `times_sampled` has a value per item."""
    with self._gate.lock:
      self._undelivered = max(0, self._undelivered - n)
      self._version += 1
      self._drop_exhausted(times_sampled)
      self._gate.wake()

  @property
  def num_acknowledged(self) -> int:
    """Unrolls ever acknowledged by a server."""
    return self._acknowledged

  @property
  def version(self) -> int | None:
    """Changes whenever the counts do; None while anything is in flight."""
    with self._gate.lock:
      if self._unacknowledged or self._undelivered:
        return None
      return self._version

  def stalled_version(self, inserts: int, samples: int) -> int | None:
    """Returns the version if no count has changed since the last call.

    The server then holds back what is in flight, and its counts are needed to
    go on.
    """
    with self._gate.lock:
      seen = (self._version, inserts, samples)
      before, self._seen = self._seen, seen
      return self._version if seen == before else None

  @property
  def is_young(self) -> bool:
    """Whether over a tenth of the table is unacknowledged."""
    return 10 * self._unacknowledged > self._size

  @property
  def waiting(self) -> bool:
    return bool(len(self._gate.writers) or len(self._gate.samplers))

  def restart(
    self, inserts: int, samples: int, size: int, undrawn: int
  ) -> None:
    """Takes over the counts, in unrolls, of a server that has just begun.

    Adds unrolls in flight, which are sent again, and `undrawn` samples, which
    are asked for again.
    """
    with self._gate.lock:
      self._version += 1
      self._counts.inserts = inserts + self._unacknowledged
      self._counts.samples = samples + undrawn
      self._size = self._restarted_size(size + self._unacknowledged, undrawn)
      self._gate.wake()

  def correct(
    self, inserts: int, samples: int, size: int, version: int
  ) -> bool:
    """Corrects the counts by the server's, in unrolls; returns whether needed.

    Does nothing if the counts have changed since `version`, which was read
    before the server was asked. As it may have counted unrolls in flight,
    counts are only clipped to the range that its own allow.
    """
    with self._gate.lock:
      if version != self._version:
        return False
      counts, before = self._counts, self._state()
      self._version += 1
      counts.inserts = _within(
        counts.inserts, inserts, inserts + self._unacknowledged
      )
      counts.samples = _within(
        counts.samples, samples, samples + self._undelivered
      )
      self._size = _within(self._size, *self._possible_sizes(size))
      self._gate.wake()
      return before != self._state()

  def info(self, counted: tuple[int, int] | None = None) -> base.TableInfo:
    """Returns the table's state.

    Args:
      counted: unrolls on the server, and `num_acknowledged` before it was
        asked, which they include. None: use the client's counts only.
    """
    with self._gate.lock:
      counts = self._counts
      size = self._told_size(counted)
      return self._gate.info(self.config, size, counts.inserts, counts.samples)

  def close(self) -> None:
    """Makes current and later waits raise `StoreClosed`."""
    self._gate.close()

  def _state(self) -> tuple[int, int, int]:
    return self._counts.inserts, self._counts.samples, self._size

  @abc.abstractmethod
  def _can_insert(self, n: int) -> bool: ...

  @abc.abstractmethod
  def _can_sample(self, n: int) -> bool: ...

  @abc.abstractmethod
  def _add(self, n: int) -> None:
    """Adds n admitted unrolls to the size."""

  def _take(self, n: int) -> None:
    """Subtracts n requested unrolls from the size."""
    del n

  def _drop_exhausted(self, times_sampled: Sequence[int]) -> None:
    """Subtracts items that were sampled for the last time from the size."""
    del times_sampled

  @abc.abstractmethod
  def _restarted_size(self, size: int, undrawn: int) -> int: ...

  @abc.abstractmethod
  def _possible_sizes(self, size: int) -> tuple[int, int]:
    """Returns the least and the greatest possible size."""

  @abc.abstractmethod
  def _told_size(self, counted: tuple[int, int] | None) -> int: ...


class ClientQueueLimiter(ClientRateLimiter):
  """Counts of a queue: unrolls leave it when they are asked for."""

  def __init__(
    self,
    config: table_configs.QueueConfig,
    on_wait: Callable[[], None] = lambda: None,
  ):
    super().__init__(config, rate_limiter.Counts(), on_wait)

  def _can_insert(self, n: int) -> bool:
    return self._size + n <= self.config.max_size

  def _can_sample(self, n: int) -> bool:
    return self._size >= n

  def _add(self, n: int) -> None:
    self._size += n

  def _take(self, n: int) -> None:
    self._size -= n

  def _restarted_size(self, size: int, undrawn: int) -> int:
    # After a loss, below 0 if more is drawn anew than came back, or above
    # `max_size` with what is sent again.
    return size - undrawn

  def _possible_sizes(self, size: int) -> tuple[int, int]:
    return size - self._undelivered, size + self._unacknowledged

  def _told_size(self, counted: tuple[int, int] | None) -> int:
    return max(0, self._size)


class ClientReplayLimiter(ClientRateLimiter):
  """Counts of a replay: unrolls stay until removed or exhausted."""

  config: table_configs.ReplayConfig

  def __init__(
    self,
    config: table_configs.ReplayConfig,
    block_width: int,
    on_wait: Callable[[], None] = lambda: None,
  ):
    self._limiter = rate_limiter.RateLimiter(config, block_width)
    super().__init__(config, self._limiter, on_wait)

  def widen(self, batch_size: int) -> None:
    """Allows for batches of `batch_size`."""
    with self._gate.lock:
      self._limiter.widen(batch_size)
      self._gate.wake()

  @property
  def _drawable(self) -> float:
    """Samples that `max_times_sampled` still allows, at most."""
    limit = self.config.max_times_sampled
    if not limit:
      return math.inf
    # How many were removed unsampled is not known, hence two bounds.
    undrawn = self._counts.inserts * limit - self._counts.samples
    return min(undrawn, self._size * limit - self._undelivered)

  def _can_insert(self, n: int) -> bool:
    size = self._size
    if self.config.max_times_sampled:
      # These leave the server one by one, which below `min_size` gives the
      # rest of a batch only after more inserts.
      size -= self._undelivered
    return self._limiter.can_insert(n, size, self._drawable)

  def _can_sample(self, n: int) -> bool:
    return self._limiter.can_sample(n, self._size, self._drawable)

  def _add(self, n: int) -> None:
    self._size = min(self._size + n, self.config.max_size)

  def _drop_exhausted(self, times_sampled: Sequence[int]) -> None:
    if limit := self.config.max_times_sampled:
      exhausted = sum(times == limit for times in times_sampled)
      self._size = max(0, self._size - exhausted)

  def _restarted_size(self, size: int, undrawn: int) -> int:
    return min(size, self.config.max_size)

  def _possible_sizes(self, size: int) -> tuple[int, int]:
    most = size + self._unacknowledged + self._undelivered
    return size, min(most, self.config.max_size)

  def _told_size(self, counted: tuple[int, int] | None) -> int:
    if counted is None:
      return self._size
    size, acknowledged = counted
    # The server may have counted unrolls in flight; ours is right if no other
    # process uses the table.
    late = self._unacknowledged + self._acknowledged - acknowledged
    most = min(size + late, self.config.max_size)
    return min(most, max(size, self._size))


def _within(count: int, least: int, most: int) -> int:
  return max(least, min(count, most))
