"""A table's rules on this side of the network, for whole blocks and batches.

Used by `store.py`. Reverb's own rules go by single items and tell a writer
nothing but that an acknowledgement is late. So the store counts along: what
passes here by the rules of `base.py` will pass there without a long wait, and
who may not pass waits here, where a time-out takes nothing back and `close`
wakes at once. What other processes do to the table arrives by `resync`.
"""

import threading
from collections.abc import Callable

from seedrl_jax.replay import base, fair_queue, rate_limiter


class Ledger:
  """Counts of one table, and the threads that wait for them.

  Attributes:
    config: the table's rules.
  """

  def __init__(
    self,
    config: base.TableConfig,
    block_width: int,
    on_wait: Callable[[], None] = lambda: None,
  ):
    """Starts with an empty table.

    Args:
      config: the table's rules.
      block_width: as in the store.
      on_wait: called as a thread begins to wait; must not wait itself.
    """
    self.config = config
    self._on_wait = on_wait
    self._width = block_width
    self._batch_size = 0
    self._lock = threading.Lock()
    name = config.name
    self._writers = fair_queue.Line(self._lock, f'insert into table {name}')
    self._samplers = fair_queue.Line(self._lock, f'sample from table {name}')
    self._is_queue = config.sampler == 'fifo'
    self._limiter = rate_limiter.RateLimiter(config, block_width)
    # Unrolls in the table, those on their way included.
    self._size = 0
    # Of the counts; what a server said before the last change is too old.
    self._version = 0
    # Handed over and not acknowledged; drawn and not delivered.
    self._unacknowledged = 0
    self._undelivered = 0
    self._acknowledged = 0
    # See `stalled_version`.
    self._seen: tuple[int, int, int] | None = None

  def widen(self, batch_size: int) -> None:
    """Makes room for batches of `batch_size`."""
    with self._lock:
      self._batch_size = max(self._batch_size, batch_size)
      self._limiter.widen(batch_size)
      self._wake()

  def admit_insert(self, n: int, timeout: float | None) -> None:
    """Waits until n unrolls may be inserted, and counts them.

    Raises:
      RateLimited, StoreClosed: as `TrajectoryWriter.insert`.
    """
    with self._lock:
      if not self._can_insert(n):
        self._on_wait()
      self._writers.wait(lambda: self._can_insert(n), timeout)
      self._limiter.inserts += n
      self._unacknowledged += n
      self._version += 1
      self._size += n
      if not self._is_queue:
        self._size = min(self._size, self.config.max_size)
      self._wake()

  def admit_sample(self, n: int, timeout: float | None) -> int:
    """Waits until a batch of n may be drawn, and counts it.

    Returns:
      Unrolls in the table before.

    Raises:
      RateLimited, StoreClosed: as `TrajectorySampler.sample`.
    """
    with self._lock:
      if not self._can_sample(n):
        self._on_wait()
      self._samplers.wait(lambda: self._can_sample(n), timeout)
      size = self._size
      self._limiter.samples += n
      self._undelivered += n
      self._version += 1
      if self._is_queue:
        self._size -= n
      self._wake()
      return size

  def acknowledged(self, n: int) -> None:
    """Notes that the server has n unrolls that were admitted."""
    with self._lock:
      self._unacknowledged = max(0, self._unacknowledged - n)
      self._acknowledged += n
      self._version += 1

  def delivered(self, n: int, exhausted: int) -> None:
    """Notes that n samples came, `exhausted` of them for the last time."""
    with self._lock:
      self._undelivered = max(0, self._undelivered - n)
      self._version += 1
      if not self._is_queue:
        self._size = max(0, self._size - exhausted)
      self._wake()

  @property
  def num_acknowledged(self) -> int:
    """Unrolls of which a server has ever said that it has them."""
    with self._lock:
      return self._acknowledged

  @property
  def version(self) -> int | None:
    """Changes whenever the counts do; None while something is under way."""
    with self._lock:
      if self._unacknowledged or self._undelivered:
        return None
      return self._version

  def stalled_version(self, inserts: int, samples: int) -> int | None:
    """Returns the version where nothing has moved since the last call.

    While something is under way, nobody knows whether the server has counted
    it, unless nothing at all moves: then the server holds it back, perhaps for
    what others did and we did not hear of, and only its counts get us on.

    Args:
      inserts, samples: completed on the server, asked for just now.
    """
    with self._lock:
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
    with self._lock:
      return bool(len(self._writers) + len(self._samplers))

  def resync(
    self,
    inserts: int,
    samples: int,
    size: int,
    undrawn: int,
    version: int | None = None,
  ) -> bool:
    """Takes over the server's counts, all in unrolls.

    What is under way comes on top where the server has just begun. One that
    goes on may have counted it already, with the word of it not here yet.

    Args:
      inserts, samples: completed there.
      size: of the table there.
      undrawn: samples that a server that has just begun will be asked for.
      version: before the server was asked; where it has changed, the server's
        counts are too old. None: they hold, as it has just begun.

    Returns:
      Whether they say anything new.
    """
    with self._lock:
      if version not in (None, self._version):
        return False
      before = self._limiter.inserts, self._limiter.samples, self._size
      self._version += 1
      if version is None:
        self._begin(inserts, samples, size, undrawn)
      else:
        self._narrow(inserts, samples, size)
      self._wake()
      return before != (
        self._limiter.inserts,
        self._limiter.samples,
        self._size,
      )

  def _begin(self, inserts: int, samples: int, size: int, undrawn: int) -> None:
    self._limiter.inserts = inserts + self._unacknowledged
    self._limiter.samples = samples + undrawn
    size += self._unacknowledged
    if self._is_queue:
      # After a loss below 0, where more is to be drawn anew than came back,
      # or above what the queue holds, with what is sent again.
      self._size = size - undrawn
    else:
      self._size = min(size, self.config.max_size)

  def _narrow(self, inserts: int, samples: int, size: int) -> None:
    """Corrects only what cannot be: without others, our counts are right."""
    late, undelivered = self._unacknowledged, self._undelivered
    self._limiter.inserts = _within(
      self._limiter.inserts, inserts, inserts + late
    )
    self._limiter.samples = _within(
      self._limiter.samples, samples, samples + undelivered
    )
    # Ours leave out a queue's unrolls when they are asked for, and a table's
    # exhausted ones when they come.
    if self._is_queue:
      self._size = _within(self._size, size - undelivered, size + late)
    else:
      most = min(size + late + undelivered, self.config.max_size)
      self._size = _within(self._size, size, most)

  def info(self, counted: tuple[int, int] | None = None) -> base.TableInfo:
    """Returns the table's state.

    Args:
      counted: unrolls on the server, and `num_acknowledged` before it was
        asked, as these are certainly among them. None: as our counts have it.
    """
    with self._lock:
      if counted is None or self._is_queue:
        size = max(0, self._size)
      else:
        size, acknowledged = counted
        # What is under way may be in the server's count already; with nobody
        # else there, ours knows.
        late = self._unacknowledged + self._acknowledged - acknowledged
        most = min(size + late, self.config.max_size)
        size = min(most, max(size, self._size))
      return base.TableInfo(
        config=self.config,
        size=size,
        inserts=self._limiter.inserts,
        samples=self._limiter.samples,
        writer_wait_seconds=self._writers.seconds,
        sampler_wait_seconds=self._samplers.seconds,
        waiting_writers=len(self._writers),
        waiting_samplers=len(self._samplers),
      )

  def close(self) -> None:
    """Ends every wait, now and later, with `StoreClosed`."""
    with self._lock:
      self._writers.close()
      self._samplers.close()

  @property
  def _drawable(self) -> float:
    """Samples that can be drawn before `max_times_sampled` empties it."""
    limit = self.config.max_times_sampled
    if not limit:
      return float('inf')
    # What gave way unsampled is not known; no more than this is there.
    undrawn = self._limiter.inserts * limit - self._limiter.samples
    return min(undrawn, self._size * limit - self._undelivered)

  def _can_insert(self, n: int) -> bool:
    if self._is_queue:
      return self._size + n <= self.config.max_size
    return self._limiter.can_insert(n, self._size, self._drawable)

  def _can_sample(self, n: int) -> bool:
    if self._is_queue:
      return self._size >= n
    return self._limiter.can_sample(n, self._size, self._drawable)

  def _wake(self) -> None:
    self._writers.wake()
    self._samplers.wake()


def _within(count: int, least: int, most: int) -> int:
  return max(least, min(count, most))
