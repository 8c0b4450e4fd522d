"""Sends items to a Reverb server and knows which of them have arrived.

Used by the store's writers. A stream has a thread of its own, named
`reverb-insert-...`, which connects, sends and reconnects; while connected, one
more reads acknowledgements (`exchange.py`).
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
from seedrl_jax.replay.reverb.client import errors, items
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Small requests that wait are sent as one of up to this many bytes; chunks
# that come to more are sent ahead of the items.
_REQUEST_BYTES = 4 * 1000 * 1000


class _Request:
  """Items that were handed over together, those not yet acknowledged."""

  def __init__(
    self, entries: Sequence[items.Item], keep: Sequence[items.Chunk]
  ):
    self.items = {item.key: item for item in entries}
    self.keep = {chunk.key for chunk in keep}
    self.chunks = {c.key: c for item in entries for c in item.chunks}
    self.size = sum(len(c.wire) for c in self.chunks.values())


class _Session:
  """One connected call: which chunks the server holds, and whether it ended."""

  def __init__(self) -> None:
    self.held: set[int] = set()
    self.ended = False


class InsertStream:
  """Inserts items in order; any thread may call it.

  What the server has not acknowledged is kept, with the chunks it refers to,
  and sent again after a loss. An item whose acknowledgement was lost on the
  way is then inserted a second time, under the same key.
  """

  def __init__(
    self,
    connection: connection_lib.Connection,
    name: str,
    max_items: int = 1000,
    max_bytes: int = 256 * 1000 * 1000,
    on_ack: Callable[[Sequence[int]], None] | None = None,
  ):
    """Starts the stream's thread.

    Args:
      connection: to the server.
      name: what messages and threads call the stream; a table's name where it
        writes to one only.
      max_items: items that may be unacknowledged.
      max_bytes: compressed bytes that their chunks may take here. A single
        insert that has more passes when nothing else is under way.
      on_ack: gets the keys of items that are in their table now; runs in the
        stream's thread and must not wait.
    """
    self._connection = connection
    self._name = name
    self._max_items = max_items
    self._max_bytes = max_bytes
    self._on_ack = on_ack
    self._lock = threading.Lock()
    # Callers wait for one, the stream's thread that sends for the other.
    self._changed = threading.Condition(self._lock)
    self._work = threading.Condition(self._lock)
    self._closed = threading.Event()
    self._error: BaseException | None = None
    self._call: transport.Stream | None = None
    # Unacknowledged requests in order, and by item; those not yet sent.
    self._pending: dict[_Request, None] = {}
    self._by_key: dict[int, _Request] = {}
    self._unsent: collections.deque[_Request] = collections.deque()
    # How many pending requests refer to a chunk, for the count of bytes.
    self._references: collections.Counter[int] = collections.Counter()
    self._bytes = 0
    self._taked = 0
    self._sent = 0
    self._thread = threading.Thread(
      target=self._run, name=f'reverb-insert-{name}', daemon=True
    )
    self._thread.start()

  @property
  def acknowledged(self) -> int:
    """Items that the server has put into their table."""
    return self._taked

  @property
  def bytes_sent(self) -> int:
    """Bytes of all messages so far, those sent again included."""
    return self._sent

  @property
  def in_flight(self) -> int:
    """Items handed over and not yet acknowledged."""
    return len(self._by_key)

  @property
  def in_flight_bytes(self) -> int:
    """Compressed bytes of the chunks that those refer to."""
    return self._bytes

  def insert(
    self,
    entries: Sequence[items.Item],
    keep: Sequence[items.Chunk] = (),
    timeout: float | None = None,
  ) -> None:
    """Hands items over; waits while too much is under way.

    Args:
      entries: at least one; they are inserted in order within a table.
      keep: chunks that the server should hold on to, because items of the
        next insert refer to them. One that is left out is dropped, and sent
        again where a later item refers to it all the same.
      timeout: seconds to wait; None: as long as it takes, 0: not at all.

    Raises:
      RateLimited: after `timeout`; nothing was handed over.
      StoreClosed: after `close`.
      ReverbError: with which the stream has ended.
    """
    request = _Request(entries, keep)
    with self._changed:
      self._wait(lambda: self._has_room(request), timeout, 'insert into')
      self._pending[request] = None
      for key, chunk in request.chunks.items():
        if not self._references[key]:
          self._bytes += len(chunk.wire)
        self._references[key] += 1
      for key in request.items:
        self._by_key[key] = request
      self._unsent.append(request)
      self._work.notify()

  def flush(self, timeout: float | None = None) -> None:
    """Returns when all that was handed over before is acknowledged.

    Raises:
      RateLimited, StoreClosed, ReverbError: as `insert`.
    """
    with self._changed:
      awaited = list(self._pending)
      self._wait(
        lambda: not any(r in self._pending for r in awaited),
        timeout,
        'flush of',
      )

  def close(self) -> None:
    """Ends the stream and every wait; what is unacknowledged may be lost.

    A stream that looks for a lost server does so to its end: close the
    connection first.
    """
    with self._changed:
      self._closed.set()
      self._changed.notify_all()
      call = self._call
    if call is not None:
      call.cancel()
    if threading.current_thread() is not self._thread:
      self._thread.join()

  def _has_room(self, request: _Request) -> bool:
    if not self._pending:
      return True
    fresh = sum(
      len(chunk.wire)
      for key, chunk in request.chunks.items()
      if not self._references[key]
    )
    return (
      len(self._by_key) + len(request.items) <= self._max_items
      and self._bytes + fresh <= self._max_bytes
    )

  def _check(self) -> None:
    if self._error is not None:
      raise self._error
    if self._closed.is_set():
      raise base.StoreClosed(
        f'The store was closed: no insert into {self._name}.'
      )

  def _wait(
    self, ready: Callable[[], bool], timeout: float | None, doing: str
  ) -> None:
    """Waits for `ready` with the lock held."""

    def done() -> bool:
      return self._closed.is_set() or self._error is not None or ready()

    passed = self._changed.wait_for(done, timeout)
    self._check()
    if not passed:
      raise base.RateLimited(
        f'No {doing} {self._name} at {self._connection.address} within '
        f'{timeout:g} s.'
      )

  def _run(self) -> None:
    """The stream's thread: connects, sends, and connects again."""
    try:
      while not self._closed.is_set():
        with contextlib.closing(
          self._connection.open_stream('InsertStream')
        ) as call:
          generation = self._connection.generation
          self._serve(call)
        if not self._closed.is_set():
          self._connection.recover(generation)
    except BaseException as e:
      with self._changed:
        self._error = None if self._closed.is_set() else e
        self._changed.notify_all()

  def _serve(self, call: transport.Stream) -> None:
    """Sends what is pending over a new call until the server is lost."""
    session = _Session()
    with self._changed:
      if self._closed.is_set():
        return
      self._unsent = collections.deque(self._pending)
      self._call = call
    try:
      transport.exchange(
        call,
        self._requests(session),
        self._take,
        functools.partial(self._end, session),
        f'reverb-insert-{self._name}-read',
      )
    except grpc.RpcError as e:
      if not self._closed.is_set() and not errors.is_lost(e):
        address = self._connection.address
        raise errors.translate(e, address, 'insert', self._name) from e

  def _end(self, session: _Session) -> None:
    with self._work:
      session.ended = True
      self._work.notify_all()

  def acknowledge(self, keys: Sequence[int]) -> None:
    """Takes items for inserted, by whatever sign; ignores unknown keys.

    An item that was sampled has been in its table, though its acknowledgement
    may be lost with the server.
    """
    # First, so that it knows of all that `flush` says has arrived.
    if self._on_ack is not None:
      self._on_ack(keys)
    with self._changed:
      for key in keys:
        request = self._by_key.pop(key, None)
        # None: acknowledged before; it was sent twice.
        if request is None:
          continue
        self._taked += 1
        del request.items[key]
        if not request.items:
          self._forget(request)
      self._changed.notify_all()

  def _take(self, response: memoryview) -> None:
    message = reverb_pb2.InsertStreamResponse.FromString(bytes(response))
    self.acknowledge(message.keys)

  def _forget(self, request: _Request) -> None:
    del self._pending[request]
    for key, chunk in request.chunks.items():
      self._references[key] -= 1
      if not self._references[key]:
        del self._references[key]
        self._bytes -= len(chunk.wire)

  def _requests(self, session: _Session) -> Iterator[list[bytes]]:
    """Yields messages until the session ends."""
    while True:
      with self._work:
        self._work.wait_for(lambda: session.ended or self._unsent)
        if session.ended:
          return
        batch = self._next_batch()
        entries = [item for r in batch for item in r.items.values()]
      for message in items.messages(
        entries, session.held, batch[-1].keep, _REQUEST_BYTES
      ):
        self._sent += sum(len(part) for part in message)
        yield message

  def _next_batch(self) -> list[_Request]:
    """Takes requests that wait, several where they are small."""
    batch = [self._unsent.popleft()]
    size = batch[0].size
    while self._unsent and size + self._unsent[0].size <= _REQUEST_BYTES:
      batch.append(self._unsent.popleft())
      size += batch[-1].size
    return batch
