"""Inserts blocks as items into a table of a Reverb server.

All writers of a table share one `InsertLane`, so that a queue keeps their
order. One thread encodes, one sends, and one reads acknowledgements.
"""

import collections
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb import transport
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  items,
  unroll_items,
)
from seedrl_jax.replay.reverb.client import connection as connection_lib
from seedrl_jax.replay.reverb.proto import reverb_pb2

# Blocks that may wait to be encoded.
_MAX_WAITING = 4
# Small requests are sent together up to this many bytes; chunks beyond that are
# sent ahead of the items.
_REQUEST_BYTES = 4 * 1000 * 1000
# Compressed bytes of the chunks of unacknowledged items.
_MAX_BYTES = 256 * 1000 * 1000


class _Request:
  """Items inserted together that are not yet acknowledged."""

  def __init__(
    self, entries: Sequence[items.Item], keep: Sequence[items.Chunk]
  ):
    self.items = {item.key: item for item in entries}
    self.keep = {chunk.key for chunk in keep}
    self.chunks = {c.key: c for item in entries for c in item.chunks}
    self.size = sum(len(c.wire) for c in self.chunks.values())


class _Unacknowledged:
  """Requests with unacknowledged items, in order."""

  def __init__(self, max_items: int):
    self._max_items = max_items
    self.requests: dict[_Request, None] = {}
    self.by_key: dict[int, _Request] = {}
    # Compressed bytes of all chunks; requests that refer to each chunk.
    self.num_bytes = 0
    self._references: collections.Counter[int] = collections.Counter()

  def has_room(self, request: _Request) -> bool:
    """Returns whether `request` may join; one alone always may."""
    if not self.requests:
      return True
    fresh = sum(
      len(chunk.wire)
      for key, chunk in request.chunks.items()
      if not self._references[key]
    )
    return (
      len(self.by_key) + len(request.items) <= self._max_items
      and self.num_bytes + fresh <= _MAX_BYTES
    )

  def add(self, request: _Request) -> None:
    self.requests[request] = None
    for key, chunk in request.chunks.items():
      if not self._references[key]:
        self.num_bytes += len(chunk.wire)
      self._references[key] += 1
    for key in request.items:
      self.by_key[key] = request

  def acknowledge(self, key: int) -> None:
    """Removes an item; ignores repeated acknowledgements."""
    request = self.by_key.pop(key, None)
    if request is None:
      return
    del request.items[key]
    if request.items:
      return
    del self.requests[request]
    for chunk_key, chunk in request.chunks.items():
      self._references[chunk_key] -= 1
      if not self._references[chunk_key]:
        del self._references[chunk_key]
        self.num_bytes -= len(chunk.wire)


class _InsertCall:
  """One connected stream: the chunks that the server holds, and its end."""

  def __init__(self) -> None:
    self.held: set[int] = set()
    self.ended = False


class InsertStream:
  """Inserts items in order; thread-safe.

  Unacknowledged items and their chunks are kept, and sent again after a loss.
  If only the acknowledgement was lost, an item is inserted twice, under the
  same key.
  """

  def __init__(
    self,
    connection: connection_lib.Connection,
    table: str,
    on_ack: Callable[[Sequence[int]], None] = lambda keys: None,
    max_items: int = 1000,
  ):
    """Starts the stream's thread; `on_ack` runs in it and must not wait."""
    self._connection = connection
    self._table = table
    self._on_ack = on_ack
    self._lock = threading.Lock()
    # Callers wait for the first, the sending thread for the second.
    self._changed = threading.Condition(self._lock)
    self._work = threading.Condition(self._lock)
    self._closed = threading.Event()
    self._error: BaseException | None = None
    self._stream: transport.Stream | None = None
    self._pending = _Unacknowledged(max_items)
    self._unsent: collections.deque[_Request] = collections.deque()
    self._sent = 0
    self._thread = threading.Thread(
      target=self._run, name=f'reverb-insert-{table}', daemon=True
    )
    self._thread.start()

  @property
  def bytes_sent(self) -> int:
    """Bytes of all messages so far, including repeats."""
    return self._sent

  @property
  def in_flight(self) -> int:
    """Items not yet acknowledged."""
    return len(self._pending.by_key)

  def insert(
    self, entries: Sequence[items.Item], keep: Sequence[items.Chunk] = ()
  ) -> None:
    """Inserts at least one item, in order; waits if too much is in flight.

    Args:
      keep: chunks that the server should hold for items of the next insert.
        Others are dropped, and sent again if a later item refers to them.

    Raises:
      StoreClosed: after `close`.
      ReverbError: if the stream has failed.
    """
    request = _Request(entries, keep)
    with self._changed:
      self._wait(lambda: self._pending.has_room(request))
      self._pending.add(request)
      self._unsent.append(request)
      self._work.notify()

  def flush(self, timeout: float | None = None) -> None:
    """Waits for all earlier inserts; RateLimited after `timeout` seconds."""
    with self._changed:
      pending = self._pending.requests
      awaited = list(pending)
      if not self._wait(
        lambda: not any(r in pending for r in awaited), timeout
      ):
        raise base.RateLimited(
          f'No flush of {self._table} at {self._connection.address} within '
          f'{timeout:g} s.'
        )

  def acknowledge(self, keys: Sequence[int]) -> None:
    """Counts items as inserted, sampled ones too; ignores unknown keys."""
    # First, so that `on_ack` has seen everything when `flush` returns.
    self._on_ack(keys)
    with self._changed:
      for key in keys:
        self._pending.acknowledge(key)
      self._changed.notify_all()

  def close(self) -> None:
    """Ends the stream and every wait; close the connection first."""
    with self._changed:
      self._closed.set()
      self._changed.notify_all()
      stream = self._stream
    if stream is not None:
      stream.cancel()
    self._thread.join()

  def _wait(
    self, ready: Callable[[], bool], timeout: float | None = None
  ) -> bool:
    """Waits for `ready` with the lock held; returns whether it is true."""

    def done() -> bool:
      return self._closed.is_set() or self._error is not None or ready()

    passed = self._changed.wait_for(done, timeout)
    if self._error is not None:
      raise self._error
    if self._closed.is_set():
      raise base.StoreClosed(
        f'The store was closed: no insert into {self._table}.'
      )
    return passed

  def _run(self) -> None:
    try:
      connection_lib.serve_streams(
        self._connection,
        'InsertStream',
        self._table,
        self._closed,
        self._serve,
      )
    except BaseException as e:
      with self._changed:
        self._error = None if self._closed.is_set() else e
        self._changed.notify_all()

  def _serve(self, stream: transport.Stream) -> None:
    """Sends what is pending over a new stream until the server is lost."""
    call = _InsertCall()
    with self._changed:
      if self._closed.is_set():
        return
      self._unsent = collections.deque(self._pending.requests)
      self._stream = stream
    transport.exchange(
      stream,
      self._messages(call),
      self._take,
      functools.partial(self._end, call),
      f'reverb-insert-{self._table}-read',
    )

  def _end(self, call: _InsertCall) -> None:
    with self._work:
      call.ended = True
      self._work.notify_all()

  def _take(self, response: memoryview) -> None:
    message = reverb_pb2.InsertStreamResponse.FromString(bytes(response))
    self.acknowledge(message.keys)

  def _messages(self, call: _InsertCall) -> Iterator[list[bytes]]:
    while True:
      with self._work:
        self._work.wait_for(lambda: call.ended or self._unsent)
        if call.ended:
          return
        batch = self._next_batch()
        entries = [item for r in batch for item in r.items.values()]
      for message in items.messages(
        entries, call.held, batch[-1].keep, _REQUEST_BYTES
      ):
        self._sent += sum(len(part) for part in message)
        yield message

  def _next_batch(self) -> list[_Request]:
    """Takes the next request, or several if they are small."""
    batch = [self._unsent.popleft()]
    size = batch[0].size
    while self._unsent and size + self._unsent[0].size <= _REQUEST_BYTES:
      batch.append(self._unsent.popleft())
      size += batch[-1].size
    return batch


class _Task(NamedTuple):
  block: base.Block
  priorities: np.ndarray


class InsertLane:
  """Encodes blocks in its thread and sends them in order."""

  def __init__(
    self,
    link: connection_lib.Connection,
    counts: client_rate_limiter.ClientRateLimiter,
    encoder: unroll_items.Encoder,
    mapper: unroll_items.Mapper,
    give_back: Callable[[Sequence[base.Block]], None],
  ):
    """Starts the thread; `give_back` receives blocks that have been encoded."""
    table = counts.config.name
    self._counts = counts
    self._encoder = encoder
    self._mapper = mapper
    self._give_back = give_back
    self._unrolls: dict[int, int] = {}
    self._stream = InsertStream(link, table, on_ack=self._on_ack)
    self._changed = threading.Condition()
    self._waiting: collections.deque[_Task] = collections.deque()
    self._encoding = False
    self._interrupted = False
    self._closed = False
    self._error: BaseException | None = None
    self._thread = threading.Thread(
      target=self._run, name=f'reverb-encode-{table}', daemon=True
    )
    self._thread.start()

  def insert(self, block: base.Block, priorities: np.ndarray) -> None:
    """See `Table`; also waits if too many blocks are queued."""
    self._check()
    self._counts.admit_insert(block.width)
    with self._changed:
      self._changed.wait_for(
        lambda: (
          self._interrupted
          or self._closed
          or self._error is not None
          or len(self._waiting) < _MAX_WAITING
        )
      )
      self._check()
      if self._interrupted:
        raise base.StoreClosed('The store was closed during an insert.')
      self._waiting.append(_Task(block, priorities))
      self._changed.notify_all()

  @property
  def bytes_sent(self) -> int:
    return self._stream.bytes_sent

  def arrived(self, keys: Sequence[int]) -> None:
    """Notes sampled items, so that they are not sent again."""
    self._stream.acknowledge(keys)

  def flush(self, timeout: float | None) -> None:
    """Waits for all earlier inserts; raises as `InsertStream.flush`."""
    with self._changed:
      self._changed.wait_for(
        lambda: (
          self._closed
          or self._error is not None
          or not (self._waiting or self._encoding)
        ),
        timeout,
      )
    self._check()
    self._stream.flush(timeout)

  def interrupt(self) -> None:
    """Refuses further blocks; those already taken are still sent."""
    with self._changed:
      self._interrupted = True
      self._changed.notify_all()

  def close(self) -> None:
    """Ends the threads; unacknowledged items may be lost."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()
    self._stream.close()
    self._thread.join()

  def _check(self) -> None:
    if self._error is not None:
      raise self._error
    if self._closed:
      name = self._counts.config.name
      raise base.StoreClosed(f'The store was closed: no insert into {name}.')

  def _run(self) -> None:
    try:
      while (task := self._take()) is not None:
        self._send(task)
    except BaseException as e:
      with self._changed:
        if not self._closed:
          self._error = e
        self._changed.notify_all()
      # Otherwise other threads would wait for this table indefinitely.
      self._counts.close()

  def _take(self) -> _Task | None:
    with self._changed:
      self._encoding = False
      self._changed.notify_all()
      self._changed.wait_for(lambda: self._closed or self._waiting)
      if self._closed:
        return None
      self._encoding = True
      task = self._waiting.popleft()
      self._changed.notify_all()
      return task

  def _send(self, task: _Task) -> None:
    encoded = self._encoder.encode(task.block, task.priorities, self._mapper)
    each = task.block.width // len(encoded.items)
    # Before the server can acknowledge them.
    self._unrolls.update((item.key, each) for item in encoded.items)
    self._give_back([task.block])
    self._stream.insert(encoded.items, encoded.keep)

  def _on_ack(self, keys: Sequence[int]) -> None:
    # 0 if acknowledged twice, as it was sent twice.
    counts = [self._unrolls.pop(key, 0) for key in keys]
    self._counts.acknowledged(sum(counts))
