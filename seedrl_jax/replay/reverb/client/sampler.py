"""Draws batches from a table of a Reverb server.

Each of `SampleStreams` has a thread that reads, and one of gRPC that sends
requests. A `Sampler` makes batches of the samples.
"""

import collections
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

from seedrl_jax.replay import base, fair_queue
from seedrl_jax.replay.reverb import streams
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.client import items
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Samples per request; a stream has up to two requests under way.
_MAX_PER_REQUEST = 16

# Decodes a batch.
Decode = Callable[[Sequence[items.DrawnItem]], base.Sample]


class _SampleCall:
  """One connected stream, and the samples that it still awaits."""

  def __init__(self) -> None:
    self.joiner = items.Joiner()
    self.awaited = 0
    self.ended = False


class SampleStreams:
  """Draws samples on demand; thread-safe.

  A table is sampled exactly as often as `request` says. Only after a loss of
  the server, what was drawn and not delivered is drawn again; from a table
  with `max_times_sampled` such a sample is lost with its item.
  """

  def __init__(
    self,
    connection: connection_lib.Connection,
    table: str,
    num_streams: int = 1,
    on_arrival: Callable[[Sequence[int]], None] = lambda keys: None,
  ):
    """Starts the threads; `on_arrival` receives keys and must not wait."""
    self._on_arrival = on_arrival
    self._connection = connection
    self._table = table
    self._lock = threading.Lock()
    self._readers = fair_queue.FairQueue(
      self._lock, f'sample from table {table}'
    )
    self._wanted = threading.Condition(self._lock)
    self._closed = threading.Event()
    self._streams: set[streams.Stream] = set()
    # Samples not yet requested from the server.
    self._demand = 0
    self._ready: collections.deque[items.DrawnItem] = collections.deque()
    self._threads = [
      threading.Thread(
        target=self._run, name=f'reverb-sample-{table}-{i}', daemon=True
      )
      for i in range(num_streams)
    ]
    for thread in self._threads:
      thread.start()

  def waits(self) -> tuple[float, int]:
    """Returns the seconds of all waits for samples, and who waits now."""
    with self._lock:
      return self._readers.seconds, len(self._readers)

  def request(self, count: int) -> None:
    """Requests `count` more samples; does not wait."""
    with self._lock:
      self._demand += count
      self._wanted.notify_all()

  def get(self, count: int = 1, wait: bool = True) -> list[items.DrawnItem]:
    """Waits for the next samples; see `TrajectorySampler.sample`.

    Raises what ended a stream, such as a ReverbError.
    """
    with self._lock:
      self._readers.enter(lambda: len(self._ready) >= count, wait)
      taken = [self._ready.popleft() for _ in range(count)]
      self._readers.wake()
      return taken

  def interrupt(self) -> None:
    """Ends every wait; does not wait for the threads."""
    with self._lock:
      self._closed.set()
      self._readers.close()
      self._wanted.notify_all()
      streams = list(self._streams)
    for stream in streams:
      stream.cancel()

  def close(self) -> None:
    """Ends the streams and every wait; close the connection first."""
    self.interrupt()
    for thread in self._threads:
      thread.join()

  def _run(self) -> None:
    connection_lib.serve_streams(
      self._connection,
      'SampleStream',
      self._table,
      self._closed,
      self._serve,
      self._fail,
    )

  def _fail(self, error: BaseException) -> None:
    with self._lock:
      self._readers.close(error)

  def _serve(self, stream: streams.Stream) -> None:
    """Requests and reads over a new stream until the server is lost."""
    call = _SampleCall()
    with self._lock:
      if self._closed.is_set():
        return
      self._streams.add(stream)

    def end() -> None:
      with self._lock:
        call.ended = True
        self._wanted.notify_all()

    try:
      stream.exchange(
        self._requests(call), functools.partial(self._take, call), end
      )
    finally:
      with self._lock:
        self._streams.discard(stream)
        # Any stream may fetch what did not come.
        self._demand += call.awaited
        self._wanted.notify_all()

  def _take(self, call: _SampleCall, message: bytes) -> None:
    complete = call.joiner.add(message)
    self._on_arrival([sample.key for sample in complete])
    with self._lock:
      could_ask = self._may_ask(call)
      self._ready.extend(complete)
      call.awaited -= len(complete)
      self._readers.wake()
      # Waking every stream for nothing would cost more than the work itself.
      if not could_ask and self._may_ask(call):
        self._wanted.notify_all()

  def _requests(self, call: _SampleCall) -> Iterator[bytes]:
    while True:
      with self._lock:
        self._wanted.wait_for(lambda: call.ended or self._may_ask(call))
        if call.ended:
          return
        count = min(self._demand, _MAX_PER_REQUEST)
        self._demand -= count
        call.awaited += count
      # Without a rate limiter's time-out the server waits indefinitely.
      yield reverb_pb2.SampleStreamRequest(
        table=self._table, num_samples=count
      ).SerializeToString()

  def _may_ask(self, call: _SampleCall) -> bool:
    return self._demand > 0 and call.awaited <= _MAX_PER_REQUEST


class Sampler(base.TrajectorySampler):
  """Draws batches, some ahead; thread-safe."""

  def __init__(
    self, streams: SampleStreams, num_items: int, decode: Decode, ahead: int
  ):
    """Draws nothing yet; a batch is `num_items`. Owns `streams`."""
    self.streams = streams
    self._num_items = num_items
    self._decode = decode
    self._ahead = ahead
    self._lock = threading.Lock()
    # Batches requested that no caller waits for.
    self._spare = 0

  def sample(self, wait: bool = True) -> base.Sample:
    """See `TrajectorySampler`; without `wait`, returns only what is here."""
    count = self._num_items
    with self._lock:
      missing = max(0, 1 + self._ahead - self._spare)
      self._spare += missing - 1
    self.streams.request(missing * count)
    try:
      drawn = self.streams.get(count, wait)
    except base.RateLimited:
      with self._lock:
        self._spare += 1
      raise
    return self._decode(drawn)
