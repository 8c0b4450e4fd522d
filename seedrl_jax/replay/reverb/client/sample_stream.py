"""Fetches samples from a table of a Reverb server, over several streams.

Used by the store's samplers. Each stream has a thread of its own, named
`reverb-sample-<table>-<number>`, that connects, asks for samples and
reconnects; while connected, one more reads them (`exchange.py`). Decoding is
left to whoever takes them.
"""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

import grpc

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.client import errors, samples
from seedrl_jax.replay.reverb.proto import reverb_pb2


class _Session:
  """One connected call: samples asked for that are still to come."""

  def __init__(self) -> None:
    self.awaited = 0
    self.ended = False


class SampleStreams:
  """Draws samples on demand; any thread may call it.

  Nothing is drawn that was not asked for, so a table is sampled exactly as
  often as `request` says; the exception is a loss of the server, after which
  what it had drawn and not delivered is drawn anew. From a table with
  `max_times_sampled` such a sample is lost with its item.
  """

  def __init__(
    self,
    connection: connection_lib.Connection,
    table: str,
    num_streams: int = 1,
    max_per_request: int = 16,
    max_bytes: int = 256 * 1000 * 1000,
    rate_limiter_timeout: float | None = None,
    on_arrival: Callable[[Sequence[int]], None] | None = None,
  ):
    """Starts the streams' threads; nothing is drawn before `request`.

    Args:
      connection: to the server.
      table: its name.
      num_streams: that fetch side by side. One keeps a queue's order.
      max_per_request: samples that one stream asks for at once; it has up to
        two such requests under way.
      max_bytes: compressed bytes that may wait to be taken, or be on their
        way as far as the size of a sample is known from earlier ones. Streams
        ask for no more there, and go on as samples are taken.
      rate_limiter_timeout: seconds that the server may let a request wait;
        None: as long as it takes.
      on_arrival: gets the keys of items as they come; runs in the streams'
        threads and must not wait.
    """
    self._on_arrival = on_arrival
    self._connection = connection
    self._table = table
    self._per_request = max_per_request
    self._max_bytes = max_bytes
    self._timeout = rate_limiter_timeout
    self._lock = threading.Lock()
    # Who waits for what: a woken thread that finds nothing has cost the
    # interpreter lock for nothing, a dozen of them more than the work itself.
    self._arrived = threading.Condition(self._lock)
    self._wanted = threading.Condition(self._lock)
    self._closed = threading.Event()
    self._error: BaseException | None = None
    self._limited = False
    self._calls: set[transport.Stream] = set()
    # Not yet asked of the server, and not yet come from it.
    self._demand = 0
    self._outstanding = 0
    self._ready: collections.deque[samples.Sample] = collections.deque()
    self._bytes = 0
    # Of the largest sample so far.
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
  def ready(self) -> int:
    """Samples that have arrived and were not taken."""
    return len(self._ready)

  @property
  def outstanding(self) -> int:
    """Samples that were asked for and have not arrived."""
    return self._outstanding

  @property
  def ready_bytes(self) -> int:
    """Compressed bytes of those."""
    return self._bytes

  def request(self, count: int) -> None:
    """Asks for `count` more samples; does not wait."""
    with self._lock:
      self._check()
      self._demand += count
      self._outstanding += count
      self._wanted.notify_all()

  def get(self, timeout: float | None = None) -> samples.Sample:
    """Takes the next sample that has arrived; waits for it.

    Args:
      timeout: seconds to wait; None: as long as it takes, 0: not at all.

    Raises:
      RateLimited: after `timeout`, or where the rate limiter's time-out passed
        first. What was asked for stays so: the next call waits on.
      StoreClosed: after `close`.
      UnknownTable, ReverbError: with which a stream has ended.
    """
    with self._lock:
      self._arrived.wait_for(
        lambda: (
          self._ready
          or self._closed.is_set()
          or self._error is not None
          or self._limited
        ),
        timeout,
      )
      if self._closed.is_set() or not self._ready:
        self._check()
      if not self._ready:
        self._limited = False
        limit = self._timeout if timeout is None else timeout
        raise base.RateLimited(
          f'No sample from table {self._table} at {self._connection.address} '
          f'within {limit:g} s.'
        )
      sample = self._ready.popleft()
      had_room = self._room() > 0
      self._bytes -= sample.size
      if self._demand and not had_room and self._room() > 0:
        self._wanted.notify_all()
      return sample

  def interrupt(self) -> None:
    """Ends every wait; the threads end when the connection lets them."""
    with self._lock:
      self._closed.set()
      self._arrived.notify_all()
      self._wanted.notify_all()
      calls = list(self._calls)
    for call in calls:
      call.cancel()

  def close(self) -> None:
    """Ends the streams and every wait; as `InsertStream.close`."""
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
    """A stream's thread: connects, asks, and connects again."""
    try:
      while not self._closed.is_set():
        with contextlib.closing(
          self._connection.open_stream('SampleStream')
        ) as call:
          generation = self._connection.generation
          is_there = self._serve(call)
        if not is_there and not self._closed.is_set():
          self._connection.recover(generation)
    except BaseException as e:
      with self._lock:
        self._error = self._error or e
        self._arrived.notify_all()

  def _serve(self, call: transport.Stream) -> bool:
    """Asks and reads over a new call; returns whether the server is there."""
    session = _Session()
    with self._lock:
      if self._closed.is_set():
        return False
      self._calls.add(call)
    joiner = samples.Joiner()
    try:
      transport.exchange(
        call,
        self._requests(session),
        functools.partial(self._take, joiner=joiner, session=session),
        functools.partial(self._end, session),
        f'{threading.current_thread().name}-read',
      )
    except grpc.RpcError as e:
      # The rate limiter's time-out ends a call, and no more.
      if self._is_limited(e):
        return True
      if not self._closed.is_set() and not errors.is_lost(e):
        address = self._connection.address
        raise errors.translate(e, address, 'sample', self._table) from e
    finally:
      with self._lock:
        self._calls.discard(call)
        # What did not come is still wanted, from any stream.
        self._demand += session.awaited
        self._wanted.notify_all()
    return False

  def _end(self, session: _Session) -> None:
    with self._lock:
      session.ended = True
      self._wanted.notify_all()

  def _is_limited(self, error: grpc.RpcError) -> bool:
    """Notes a rate limiter's time-out."""
    if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
      return False
    with self._lock:
      self._limited = True
      self._arrived.notify_all()
    return True

  def _take(
    self, message: memoryview, joiner: samples.Joiner, session: _Session
  ) -> None:
    complete = joiner.add(message)
    if self._on_arrival is not None and complete:
      self._on_arrival([sample.key for sample in complete])
    with self._lock:
      could_ask = self._may_ask(session)
      self._ready.extend(complete)
      self._limited = self._limited and not complete
      sizes = [sample.size for sample in complete]
      self._bytes += sum(sizes)
      self._size = max(self._size, *sizes) if sizes else self._size
      session.awaited -= len(complete)
      self._outstanding -= len(complete)
      self._arrived.notify(len(complete))
      if not could_ask and self._may_ask(session):
        self._wanted.notify_all()

  def _requests(self, session: _Session) -> Iterator[list[bytes]]:
    """Yields requests until the session ends."""
    while True:
      with self._lock:
        self._wanted.wait_for(lambda: session.ended or self._may_ask(session))
        if session.ended:
          return
        count = min(self._demand, self._per_request, self._room())
        self._demand -= count
        session.awaited += count
      yield [self._encode(count)]

  def _may_ask(self, session: _Session) -> bool:
    return (
      self._demand > 0
      and session.awaited <= self._per_request
      and self._room() > 0
    )

  def _room(self) -> int:
    """Returns how many more samples may be asked for, by their bytes.

    The server is held back by not asking: were it by not reading, it would
    take the connection for a dead one after a while.
    """
    if not self._size:
      return self._per_request
    asked = self._outstanding - self._demand
    left = self._max_bytes - self._bytes - asked * self._size
    is_idle = not self._bytes and not asked
    return max(left // self._size, 1 if is_idle else 0)

  def _encode(self, count: int) -> bytes:
    request = reverb_pb2.SampleStreamRequest(
      table=self._table, num_samples=count
    )
    if self._timeout is not None:
      # A negative time-out, which is what an absent one means, is for ever.
      request.rate_limiter_timeout.milliseconds = round(1000 * self._timeout)
    return request.SerializeToString()
