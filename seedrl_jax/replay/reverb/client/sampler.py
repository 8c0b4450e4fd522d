"""Draws batches from a table of a Reverb server."""

import collections
import threading
from collections.abc import Callable, Iterator, Sequence

from seedrl_jax.replay import base, fair_queue
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.client import items
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Samples per request; a stream has up to two requests under way.
_MAX_PER_REQUEST = 16
# Batches that a sampler draws ahead.
_AHEAD = 1

# Decodes a batch.
Decode = Callable[[Sequence[items.DrawnItem]], base.Sample]


class _SampleStream(connection_lib.TableStream):
  """One of a sampler's streams."""

  def __init__(
    self,
    sampler: 'Sampler',
    connection: connection_lib.Connection,
    table: str,
  ):
    super().__init__(connection, 'sample', table, sampler.lock)
    self._sampler = sampler
    self._joiner = items.Joiner()
    self._awaited = 0
    self._thread.start()

  def _begin(self) -> None:
    # Any stream may fetch what did not come.
    self._sampler.demand += self._awaited
    self._awaited = 0
    self._joiner = items.Joiner()

  def _messages(self, ended: threading.Event) -> Iterator[bytes]:
    while True:
      with self._lock:
        self._work.wait_for(lambda: ended.is_set() or self._may_ask())
        if ended.is_set():
          return
        count = min(self._sampler.demand, _MAX_PER_REQUEST)
        self._sampler.demand -= count
        self._awaited += count
      # Without a rate limiter's time-out the server waits indefinitely.
      yield reverb_pb2.SampleStreamRequest(
        table=self._table, num_samples=count
      ).SerializeToString()

  def _take(self, response: bytes) -> None:
    complete = self._joiner.add(response)
    self._sampler.on_arrival([item.info.item.key for item in complete])
    with self._lock:
      self._awaited -= len(complete)
      self.wake()
      self._sampler.ready.extend(complete)
      self._sampler.readers.wake()

  def _may_ask(self) -> bool:
    return self._sampler.demand > 0 and self._awaited <= _MAX_PER_REQUEST

  def wake(self) -> None:
    """Sends a request if one is due; called with the lock held."""
    if self._may_ask():
      self._work.notify()

  def _fail(self, error: BaseException) -> None:
    self._sampler.readers.close(error)


class Sampler(base.TrajectorySampler):
  """Draws batches, some ahead; thread-safe.

  A table is sampled for no more than these. Only after a loss of the server,
  what was drawn and not delivered is drawn again; from a table with
  `max_times_sampled` such a sample is lost with its item.

  Attributes:
    lock: guards the other attributes.
    demand: samples not yet requested from the server.
    ready: samples that have arrived.
    readers: threads that wait for a batch.
  """

  def __init__(
    self,
    connection: connection_lib.Connection,
    table: str,
    num_items: int,
    decode: Decode,
    num_streams: int = 1,
    on_arrival: Callable[[Sequence[int]], None] = lambda keys: None,
  ):
    """Starts the threads; a batch is `num_items`.

    `on_arrival` receives the keys of items and must not wait.
    """
    self._num_items = num_items
    self._decode = decode
    self.on_arrival = on_arrival
    self.lock = threading.Lock()
    self.readers = fair_queue.FairQueue(self.lock, f'sample from table {table}')
    self.demand = 0
    # Samples that are on their way or have arrived.
    self._expected = 0
    self.ready: collections.deque[items.DrawnItem] = collections.deque()
    self._streams = [
      _SampleStream(self, connection, table) for _ in range(num_streams)
    ]

  def sample(self, wait: bool = True) -> base.Sample:
    """See `TrajectorySampler`; without `wait`, returns only what is here.

    Raises what ended a stream, such as a ReverbError.
    """
    count = self._num_items
    with self.lock:
      wanted = (len(self.readers) + 1 + _AHEAD) * count
      missing = max(0, wanted - self._expected)
      self._expected += missing
      self.demand += missing
      for stream in self._streams:
        stream.wake()
      self.readers.enter(lambda: len(self.ready) >= count, wait)
      drawn = [self.ready.popleft() for _ in range(count)]
      self._expected -= count
      self.readers.wake()
    return self._decode(drawn)

  def interrupt(self) -> None:
    """Ends every wait; does not wait for the threads."""
    self.readers.close()
    for stream in self._streams:
      stream.cancel()

  def close(self) -> None:
    """Ends the streams and every wait; close the connection first."""
    self.interrupt()
    for stream in self._streams:
      stream.join()
