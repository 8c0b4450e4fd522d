"""From a block that inference filled to items that the server has.

Used by `store.py`: one `InsertLane` for each table, which all its writers
share, so that a queue keeps their order.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  connection,
  insert_stream,
  unroll_items,
)

# Blocks that may wait to be encoded, besides what the stream has under way.
_MOST_WAITING = 4


class _Task(NamedTuple):
  block: base.Block
  priorities: np.ndarray


class InsertLane:
  """Encodes blocks in a thread of its own and sends them in order."""

  def __init__(
    self,
    link: connection.Connection,
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
    self._stream = insert_stream.InsertStream(link, table, on_ack=self._on_ack)
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
          or len(self._waiting) < _MOST_WAITING
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
      # Whoever waits for this table must not wait for ever.
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
