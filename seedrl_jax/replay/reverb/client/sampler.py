"""Draws batches from a table of a Reverb server.

Each of `SampleStreams` has a thread that requests and, while connected, one
that reads; a `Sampler` makes batches of their samples.
"""

import collections
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  samples,
  unroll_items,
)
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Samples per request; a stream has up to two requests under way.
_MAX_PER_REQUEST = 16
# Compressed bytes that may wait or be on their way, estimated by the largest
# sample so far.
_MAX_BYTES = 256 * 1000 * 1000


class _SampleCall:
  """One connected stream, and the samples that it still awaits."""

  def __init__(self) -> None:
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
    # Two: waking a dozen threads for nothing costs more than the work itself.
    self._arrived = threading.Condition(self._lock)
    self._wanted = threading.Condition(self._lock)
    self._closed = threading.Event()
    self._error: BaseException | None = None
    self._streams: set[transport.Stream] = set()
    # Samples not yet requested from the server, and not yet received.
    self._demand = 0
    self._outstanding = 0
    self._ready: collections.deque[samples.DrawnItem] = collections.deque()
    # Compressed bytes of those, and of the largest sample so far.
    self._ready_bytes = 0
    self._size = 0
    self._threads = [
      threading.Thread(
        target=self._run, name=f'reverb-sample-{table}-{i}', daemon=True
      )
      for i in range(num_streams)
    ]
    for thread in self._threads:
      thread.start()

  @property
  def outstanding(self) -> int:
    """Requested samples that have not arrived."""
    return self._outstanding

  def request(self, count: int) -> None:
    """Requests `count` more samples; does not wait."""
    with self._lock:
      self._check()
      self._demand += count
      self._outstanding += count
      self._wanted.notify_all()

  def get(self) -> samples.DrawnItem:
    """Waits for the next sample; raises StoreClosed or a stream's error."""
    with self._lock:
      self._arrived.wait_for(
        lambda: self._ready or self._closed.is_set() or self._error is not None
      )
      if self._closed.is_set() or not self._ready:
        self._check()
      sample = self._ready.popleft()
      had_room = self._room() > 0
      self._ready_bytes -= sample.size
      if self._demand and not had_room and self._room() > 0:
        self._wanted.notify_all()
      return sample

  def interrupt(self) -> None:
    """Ends every wait; does not wait for the threads."""
    with self._lock:
      self._closed.set()
      self._arrived.notify_all()
      self._wanted.notify_all()
      streams = list(self._streams)
    for stream in streams:
      stream.cancel()

  def close(self) -> None:
    """Ends the streams and every wait; see `InsertStream.close`."""
    self.interrupt()
    for thread in self._threads:
      thread.join()

  def _check(self) -> None:
    if self._closed.is_set():
      raise base.StoreClosed(
        f'The store was closed: no sample from table {self._table}.'
      )
    if self._error is not None:
      raise self._error

  def _run(self) -> None:
    try:
      connection_lib.serve_streams(
        self._connection,
        'SampleStream',
        self._table,
        self._closed,
        self._serve,
      )
    except BaseException as e:
      with self._lock:
        self._error = self._error or e
        self._arrived.notify_all()

  def _serve(self, stream: transport.Stream) -> None:
    """Requests and reads over a new stream until the server is lost."""
    call = _SampleCall()
    with self._lock:
      if self._closed.is_set():
        return
      self._streams.add(stream)
    try:
      transport.exchange(
        stream,
        self._requests(call),
        functools.partial(self._take, joiner=samples.Joiner(), call=call),
        functools.partial(self._end, call),
        f'{threading.current_thread().name}-read',
      )
    finally:
      with self._lock:
        self._streams.discard(stream)
        # Any stream may fetch what did not come.
        self._demand += call.awaited
        self._wanted.notify_all()

  def _end(self, call: _SampleCall) -> None:
    with self._lock:
      call.ended = True
      self._wanted.notify_all()

  def _take(
    self, message: memoryview, joiner: samples.Joiner, call: _SampleCall
  ) -> None:
    complete = joiner.add(message)
    self._on_arrival([sample.key for sample in complete])
    sizes = [sample.size for sample in complete]
    with self._lock:
      could_ask = self._may_ask(call)
      self._ready.extend(complete)
      self._ready_bytes += sum(sizes)
      self._size = max(self._size, *sizes) if sizes else self._size
      call.awaited -= len(complete)
      self._outstanding -= len(complete)
      self._arrived.notify(len(complete))
      if not could_ask and self._may_ask(call):
        self._wanted.notify_all()

  def _requests(self, call: _SampleCall) -> Iterator[list[bytes]]:
    while True:
      with self._lock:
        self._wanted.wait_for(lambda: call.ended or self._may_ask(call))
        if call.ended:
          return
        count = min(self._demand, _MAX_PER_REQUEST, self._room())
        self._demand -= count
        call.awaited += count
      # Without a rate limiter's time-out the server waits indefinitely.
      request = reverb_pb2.SampleStreamRequest(
        table=self._table, num_samples=count
      )
      yield [request.SerializeToString()]

  def _may_ask(self, call: _SampleCall) -> bool:
    return (
      self._demand > 0 and call.awaited <= _MAX_PER_REQUEST and self._room() > 0
    )

  def _room(self) -> int:
    """Returns how many more samples may be requested, by their bytes."""
    # The server would take a connection that is not read for dead.
    if not self._size:
      return _MAX_PER_REQUEST
    asked = self._outstanding - self._demand
    left = _MAX_BYTES - self._ready_bytes - asked * self._size
    is_idle = not self._ready_bytes and not asked
    return max(left // self._size, 1 if is_idle else 0)


class Sampler(base.TrajectorySampler):
  """Draws batches, some ahead; thread-safe."""

  def __init__(
    self,
    streams: SampleStreams,
    counts: client_rate_limiter.ClientRateLimiter,
    decoder: unroll_items.Decoder,
    ahead: int,
    before_request: Callable[[], None],
  ):
    """Draws nothing yet; `streams` are unshared and closed with the sampler."""
    self._streams = streams
    self._counts = counts
    self._decoder = decoder
    self._ahead = ahead
    self._before_request = before_request
    self._lock = threading.Lock()
    # Samples of the next batch; batches under way for no caller yet; callers
    # that request a batch of their own.
    self._drawn: list[samples.DrawnItem] = []
    self._unclaimed = 0
    self._waiting = 0
    self._turn = threading.Lock()

  def sample(self, wait: bool = True) -> base.Sample:
    """See `TrajectorySampler`; the network is always waited for."""
    self._claim(wait)
    with self._lock:
      while len(self._drawn) < self._decoder.num_items:
        self._drawn.append(self._streams.get())
      drawn, self._drawn = self._drawn, []
    times_sampled = [sample.times_sampled for sample in drawn]
    self._counts.delivered(self._decoder.batch_size, times_sampled)
    self._ask_ahead()
    return self._decoder.decode(drawn)

  def interrupt(self) -> None:
    """Ends every wait."""
    self._streams.interrupt()

  def close(self) -> None:
    """Ends the threads, at once if the connection is closed."""
    self._streams.close()

  @property
  def undrawn(self) -> int:
    """Requested items that have not arrived."""
    return self._streams.outstanding

  def _claim(self, wait: bool) -> None:
    """Waits until a batch is under way that no other caller takes."""
    with self._turn:
      if self._unclaimed:
        self._unclaimed -= 1
        return
      self._waiting += 1
    try:
      self._ask(wait)
    finally:
      with self._turn:
        self._waiting -= 1

  def _ask(self, wait: bool) -> None:
    self._counts.admit_sample(self._decoder.batch_size, wait)
    self._before_request()
    self._streams.request(self._decoder.num_items)

  def _ask_ahead(self) -> None:
    # Not before callers that wait: otherwise, nobody might claim the last batch
    # that can be drawn.
    with self._turn:
      while self._unclaimed < self._ahead and not self._waiting:
        try:
          self._ask(wait=False)
        except base.RateLimited:
          return
        self._unclaimed += 1
