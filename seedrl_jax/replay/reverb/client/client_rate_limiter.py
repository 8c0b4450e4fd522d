"""A table's rules on this side of the network, for whole blocks and batches.

Reverb's own rules go by single items and tell a writer nothing but that an
acknowledgement is late. So the client counts along: what passes here will pass
there without a long wait, and what may not pass waits here, where `close` wakes
it at once. `correct` tells what other processes did to the table.
"""

import abc
import math
from collections.abc import Callable, Sequence

from seedrl_jax.replay import base, fair_queue, rate_limiter, table_configs


class ClientRateLimiter(abc.ABC):
  """Counts of one table, and the threads that wait for them.

  `admit_insert` and `admit_sample` raise as `TrajectoryWriter.insert` and
  `TrajectorySampler.sample` do.

  Attributes:
    config: the table's rules.
  """

  config: table_configs.TableConfig

  def __init__(
    self,
    config: table_configs.TableConfig,
    counts: rate_limiter.Counts,
    on_wait: Callable[[], None] = lambda: None,
  ):
    """Starts with an empty table.

    Args:
      config: the table's rules.
      counts: of admitted unrolls.
      on_wait: called as a thread begins to wait; must not wait itself.
    """
    self.config = config
    self._on_wait = on_wait
    self._gate = fair_queue.TableGate(config.name)
    self._counts = counts
    # Unrolls in the table, those on their way included.
    self._size = 0
    # Changes with the counts.
    self._version = 0
    # Inserted and not acknowledged; drawn and not delivered; acknowledged ever.
    self._unacknowledged = self._undelivered = self._acknowledged = 0
    # See `stalled_version`.
    self._seen: tuple[int, int, int] | None = None

  def admit_insert(self, n: int) -> None:
    """Waits until n unrolls may be inserted, and counts them."""
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
    """Waits until a batch of n may be drawn, and counts it."""
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
    """Notes that the server has n unrolls that were admitted."""
    with self._gate.lock:
      self._unacknowledged = max(0, self._unacknowledged - n)
      self._acknowledged += n
      self._version += 1

  def delivered(self, n: int, times_sampled: Sequence[int]) -> None:
    """Notes that items of n unrolls came, sampled so often by now."""
    with self._gate.lock:
      self._undelivered = max(0, self._undelivered - n)
      self._version += 1
      self._drop_exhausted(times_sampled)
      self._gate.wake()

  @property
  def num_acknowledged(self) -> int:
    """Unrolls that a server has ever acknowledged."""
    return self._acknowledged

  @property
  def version(self) -> int | None:
    """Changes whenever the counts do; None while something is under way."""
    with self._gate.lock:
      if self._unacknowledged or self._undelivered:
        return None
      return self._version

  def stalled_version(self, inserts: int, samples: int) -> int | None:
    """Returns the version if nothing has moved since the last call.

    Nobody knows whether the server has counted what is in flight, unless
    nothing moves: then the server holds it back, perhaps for what others did,
    and only its counts get us on.

    Args:
      inserts, samples: completed on the server, asked for just now.
    """
    with self._gate.lock:
      seen = (self._version, inserts, samples)
      before, self._seen = self._seen, seen
      return self._version if seen == before else None

  @property
  def is_young(self) -> bool:
    """Whether what is not there yet would be a good part of the table."""
    return 10 * self._unacknowledged > self._size

  @property
  def waiting(self) -> bool:
    """Whether a thread waits."""
    return bool(len(self._gate.writers) or len(self._gate.samplers))

  def restart(
    self, inserts: int, samples: int, size: int, undrawn: int
  ) -> None:
    """Takes over the counts of a server that has just begun, in unrolls.

    Adds unrolls in flight, which will be sent again, and `undrawn`, the samples
    that it will be asked for again.
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
    before the server was asked. The server may have counted unrolls in flight,
    so counts are only brought into the range that its own leave possible.
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
        asked, as these are certainly among them. None: as our counts have it.
    """
    with self._gate.lock:
      counts = self._counts
      size = self._told_size(counted)
      return self._gate.info(self.config, size, counts.inserts, counts.samples)

  def close(self) -> None:
    """Ends every wait, now and later, with `StoreClosed`."""
    self._gate.close()

  def _state(self) -> tuple[int, int, int]:
    return self._counts.inserts, self._counts.samples, self._size

  @abc.abstractmethod
  def _can_insert(self, n: int) -> bool: ...

  @abc.abstractmethod
  def _can_sample(self, n: int) -> bool: ...

  @abc.abstractmethod
  def _add(self, n: int) -> None:
    """Counts n unrolls into the size as they are admitted."""

  def _take(self, n: int) -> None:
    """Counts n unrolls out of the size as they are asked for."""
    del n

  def _drop_exhausted(self, times_sampled: Sequence[int]) -> None:
    """Counts items out of the size that came for the last time."""
    del times_sampled

  @abc.abstractmethod
  def _restarted_size(self, size: int, undrawn: int) -> int: ...

  @abc.abstractmethod
  def _possible_sizes(self, size: int) -> tuple[int, int]:
    """Returns the least and the most that our size may be."""

  @abc.abstractmethod
  def _told_size(self, counted: tuple[int, int] | None) -> int: ...


class ClientQueueLimiter(ClientRateLimiter):
  """Of a queue: unrolls leave it when they are asked for."""

  def __init__(
    self,
    config: table_configs.QueueConfig,
    on_wait: Callable[[], None] = lambda: None,
  ):
    """Starts with an empty queue; see `ClientRateLimiter`."""
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
    # After a loss below 0, if more is to be drawn anew than came back, or
    # above what the queue holds, with what is sent again.
    return size - undrawn

  def _possible_sizes(self, size: int) -> tuple[int, int]:
    return size - self._undelivered, size + self._unacknowledged

  def _told_size(self, counted: tuple[int, int] | None) -> int:
    return max(0, self._size)


class ClientReplayLimiter(ClientRateLimiter):
  """Of a replay: unrolls stay until they give way or are exhausted."""

  config: table_configs.ReplayConfig

  def __init__(
    self,
    config: table_configs.ReplayConfig,
    block_width: int,
    on_wait: Callable[[], None] = lambda: None,
  ):
    """Starts with an empty table that is given blocks of `block_width`."""
    self._limiter = rate_limiter.RateLimiter(config, block_width)
    super().__init__(config, self._limiter, on_wait)

  def widen(self, batch_size: int) -> None:
    """Makes room for batches of `batch_size`."""
    with self._gate.lock:
      self._limiter.widen(batch_size)
      self._gate.wake()

  @property
  def _drawable(self) -> float:
    """Samples that can be drawn before `max_times_sampled` empties it."""
    limit = self.config.max_times_sampled
    if not limit:
      return math.inf
    # What gave way unsampled is not known; no more than this is there.
    undrawn = self._counts.inserts * limit - self._counts.samples
    return min(undrawn, self._size * limit - self._undelivered)

  def _can_insert(self, n: int) -> bool:
    return self._limiter.can_insert(n, self._size, self._drawable)

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
    # The server may have counted unrolls in flight already; ours is right if
    # no other process uses the table.
    late = self._unacknowledged + self._acknowledged - acknowledged
    most = min(size + late, self.config.max_size)
    return min(most, max(size, self._size))


def _within(count: int, least: int, most: int) -> int:
  return max(least, min(count, most))
