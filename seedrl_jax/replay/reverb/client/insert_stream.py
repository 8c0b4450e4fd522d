"""Inserts items into a table of a Reverb server."""

import collections
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent import futures

from seedrl_jax.replay import base, fair_queue
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.client import items
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Chunks beyond this many bytes are sent ahead of their items.
_REQUEST_BYTES = 4 * 1000 * 1000


class _Request:
  """Items inserted together, empty until they are encoded."""

  def __init__(self) -> None:
    # Those not yet acknowledged, by key.
    self.items: dict[int, items.Item] = {}
    # Keys of chunks that the server should hold afterwards.
    self.keep: Set[int] = frozenset()


class InsertStream(connection_lib.TableStream):
  """Inserts items in order; thread-safe.

  All writers of a table share one, so that a queue keeps their order. One
  thread encodes, one sends, and one reads acknowledgements.

  The server stops reading if its table is full or its ratio is reached: what it
  has not acknowledged is bounded here, so that writers wait. Unacknowledged
  items and their chunks are kept, and sent again after a loss. If only the
  acknowledgement was lost, an item is inserted twice, under the same key.
  """

  def __init__(
    self,
    connection: connection_lib.Connection,
    table: str,
    max_in_flight: int,
  ):
    """Starts no thread before the first of `max_in_flight` inserts."""
    super().__init__(connection, 'insert', table, threading.Lock())
    self._max_in_flight = max_in_flight
    self.writers = fair_queue.FairQueue(
      self._lock, f'insert into table {table}'
    )
    # `flush` waits for it.
    self._settled = threading.Condition(self._lock)
    self._error: BaseException | None = None
    # In order; the request of each unacknowledged item.
    self._pending: dict[_Request, None] = {}
    self._by_key: dict[int, _Request] = {}
    self._unsent: collections.deque[_Request] = collections.deque()
    self.bytes_sent = 0  # of all messages so far, including repeats
    self._encoding = futures.ThreadPoolExecutor(1, f'reverb-encode-{table}')

  def insert(self, encode: Callable[[], items.Encoded]) -> None:
    """Inserts what `encode` returns; waits if too much is in flight.

    Raises StoreClosed if `writers` are closed, or what ended the stream or an
    earlier `encode`.
    """
    with self._lock:
      self.writers.enter(lambda: len(self._pending) < self._max_in_flight)
      request = _Request()
      self._pending[request] = None
      self._encoding.submit(self._encode, request, encode)
      if self._thread.ident is None:
        self._thread.start()
      self.writers.wake()

  def flush(self, timeout: float | None = None) -> None:
    """Waits, `timeout` seconds at most, for all earlier inserts.

    Those that the table's rules do not admit stay in flight. Raises as `insert`
    does.
    """
    with self._lock:
      awaited = set(self._pending)
      self._settled.wait_for(
        lambda: self._error is not None or not awaited & self._pending.keys(),
        timeout,
      )
      if self._error is not None:
        raise self._error

  def acknowledge(self, keys: Sequence[int]) -> None:
    """Counts items as inserted, sampled ones too; ignores unknown keys."""
    with self._lock:
      for key in keys:
        # None if acknowledged twice, as it was sent twice.
        request = self._by_key.pop(key, None)
        if request is None:
          continue
        del request.items[key]
        if not request.items:
          del self._pending[request]
      self._settled.notify_all()
      self.writers.wake()

  def close(self) -> None:
    """Ends the stream and every wait; close the connection first."""
    self._fail(
      base.StoreClosed(f'The store was closed: no insert into {self._table}.')
    )
    self.cancel()
    self.join()
    self._encoding.shutdown(cancel_futures=True)

  def _encode(
    self, request: _Request, encode: Callable[[], items.Encoded]
  ) -> None:
    try:
      encoded = encode()
    except BaseException as e:
      self._fail(e)
      return
    with self._lock:
      request.items = {item.key: item for item in encoded.items}
      request.keep = encoded.keep
      self._by_key.update(dict.fromkeys(request.items, request))
      self._unsent.append(request)
      self._work.notify()

  def _fail(self, error: BaseException) -> None:
    with self._lock:
      self._error = self._error or error
      self._settled.notify_all()
    self.writers.close(error)

  def _begin(self) -> None:
    # Sends what was not acknowledged again.
    self._unsent = collections.deque(r for r in self._pending if r.items)

  def _take(self, response: bytes) -> None:
    message = reverb_pb2.InsertStreamResponse.FromString(response)
    self.acknowledge(message.keys)

  def _messages(self, ended: threading.Event) -> Iterator[bytes]:
    # Keys of the chunks that the server holds.
    held: set[int] = set()
    while True:
      with self._lock:
        self._work.wait_for(lambda: ended.is_set() or self._unsent)
        if ended.is_set():
          return
        request = self._unsent.popleft()
        entries = list(request.items.values())
      # All may have been sampled meanwhile.
      if not entries:
        continue
      messages = items.messages(entries, held, request.keep, _REQUEST_BYTES)
      for message in messages:
        self.bytes_sent += len(message)
        yield message
