"""From blocks that inference filled to items that the server has.

A table has one `InsertLane`, which all its writers share, so that a queue
keeps their order. It encodes blocks in one thread; its `InsertStream` sends
them in a second, and while connected reads acknowledgements in a third.
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

# Blocks that may wait to be encoded, besides what the stream has under way.
_MAX_WAITING = 4
# Small requests that wait are sent as one of up to this many bytes; chunks
# that come to more are sent ahead of the items.
_REQUEST_BYTES = 4 * 1000 * 1000
# Compressed bytes of the chunks of unacknowledged items.
_MAX_BYTES = 256 * 1000 * 1000


class _Request:
  """Items that were handed over together, those not yet acknowledged."""

  def __init__(
    self, entries: Sequence[items.Item], keep: Sequence[items.Chunk]
  ):
    self.items = {item.key: item for item in entries}
    self.keep = {chunk.key for chunk in keep}
    self.chunks = {c.key: c for item in entries for c in item.chunks}
    self.size = sum(len(c.wire) for c in self.chunks.values())


class _Unacknowledged:
  """Requests with items that the server has not acknowledged, in order."""

  def __init__(self, max_items: int):
    self._max_items = max_items
    self.requests: dict[_Request, None] = {}
    self.by_key: dict[int, _Request] = {}
    # Compressed bytes of all chunks; how many requests refer to each.
    self.num_bytes = 0
    self._references: collections.Counter[int] = collections.Counter()

  def has_room(self, request: _Request) -> bool:
    """Returns whether `request` may join; the largest may if it is alone."""
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
    """Adds a request behind the others."""
    self.requests[request] = None
    for key, chunk in request.chunks.items():
      if not self._references[key]:
        self.num_bytes += len(chunk.wire)
      self._references[key] += 1
    for key in request.items:
      self.by_key[key] = request

  def acknowledge(self, key: int) -> None:
    """Removes an item; of one that was sent twice, the second time nothing."""
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
  """One connected stream: which chunks the server holds; whether it ended."""

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
    table: str,
    on_ack: Callable[[Sequence[int]], None] = lambda keys: None,
    max_items: int = 1000,
  ):
    """Starts the stream's thread.

    Args:
      connection: to the server.
      table: its name.
      on_ack: gets the keys of items that are in their table now; runs in the
        stream's thread and must not wait.
      max_items: that may be unacknowledged.
    """
    self._connection = connection
    self._table = table
    self._on_ack = on_ack
    self._lock = threading.Lock()
    # Callers wait for one, the stream's thread that sends for the other.
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
    """Bytes of all messages so far, those sent again included."""
    return self._sent

  @property
  def in_flight(self) -> int:
    """Items handed over and not yet acknowledged."""
    return len(self._pending.by_key)

  def insert(
    self, entries: Sequence[items.Item], keep: Sequence[items.Chunk] = ()
  ) -> None:
    """Hands items over; waits while too much is under way.

    Args:
      entries: at least one; they are inserted in order within a table.
      keep: chunks that the server should hold on to, because items of the
        next insert refer to them. One that is left out is dropped, and sent
        again if a later item refers to it all the same.

    Raises:
      StoreClosed: after `close`.
      ReverbError: with which the stream has ended.
    """
    request = _Request(entries, keep)
    with self._changed:
      self._wait(lambda: self._pending.has_room(request))
      self._pending.add(request)
      self._unsent.append(request)
      self._work.notify()

  def flush(self, timeout: float | None = None) -> None:
    """Returns when all that was handed over before is acknowledged.

    Raises:
      RateLimited: after `timeout` seconds.
      StoreClosed, ReverbError: as `insert`.
    """
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
    """Takes items for inserted, by whatever sign; ignores unknown keys.

    An item that was sampled has been in its table, though its acknowledgement
    may be lost with the server.
    """
    # First, so that it knows of all that `flush` says has arrived.
    self._on_ack(keys)
    with self._changed:
      for key in keys:
        self._pending.acknowledge(key)
      self._changed.notify_all()

  def close(self) -> None:
    """Ends the stream and every wait; what is unacknowledged may be lost.

    A stream that looks for a lost server does so to its end: close the
    connection first.
    """
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
    """Waits for `ready` with the lock held; returns whether it came true."""

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
    """Yields messages until the call ends."""
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
    """Takes requests that wait, several if they are small."""
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
  """Encodes blocks in a thread of its own and sends them in order."""

  def __init__(
    self,
    link: connection_lib.Connection,
    counts: client_rate_limiter.ClientRateLimiter,
    encoder: unroll_items.Encoder,
    mapper: unroll_items.Mapper,
    give_back: Callable[[Sequence[base.Block]], None],
  ):
    """Starts the lane's thread, `reverb-encode-<table>`.

    Args:
      link: to the server.
      counts: of the table; told of acknowledgements.
      encoder: of the table's items.
      mapper: of `unroll_items.Workers`.
      give_back: takes blocks whose contents have been encoded.
    """
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
    """Takes a block over; see `TrajectoryWriter.insert`.

    Waits for the table's rules, and for room for one more block to encode:
    while a lost server comes back, say.
    """
    self._check()
    self._counts.admit_insert(block.width)
    block.lent = False
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
    """Bytes that went to the server so far."""
    return self._stream.bytes_sent

  def arrived(self, keys: Sequence[int]) -> None:
    """Notes items that were sampled, so that none is sent a second time."""
    self._stream.acknowledge(keys)

  def flush(self, timeout: float | None) -> None:
    """Returns when the server has all that was inserted before.

    Raises:
      RateLimited, StoreClosed, ReverbError: as `InsertStream.flush`.
    """
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
    """Takes nothing over any more; what it has is still sent."""
    with self._changed:
      self._interrupted = True
      self._changed.notify_all()

  def close(self) -> None:
    """Ends the thread and the stream; what is unacknowledged may be lost."""
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
      # Or other threads would wait for this table for ever.
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
    # None: acknowledged twice, as it was sent twice.
    counts = [self._unrolls.pop(key, 0) for key in keys]
    self._counts.acknowledged(sum(counts))
