"""From samples that the server sends to batches laid out for training.

Used by `store.py`. One sampler has streams of its own, so that batches do not
mix.
"""

import collections
import threading
from collections.abc import Callable, Sequence

import numpy as np

from seedrl_jax.replay import base, blocks
from seedrl_jax.replay.reverb.client import (
  client_rate_limiter,
  connection,
  sample_stream,
  samples,
  unroll_items,
)


class Sampler(base.TrajectorySampler):
  """Draws batches, some ahead; any thread may call it, one at a time passes."""

  def __init__(
    self,
    link: connection.Connection,
    counts: client_rate_limiter.Ledger,
    layout: blocks.UnrollLayout,
    mapper: unroll_items.Mapper,
    batch_size: int,
    num_blocks: int,
    ahead: int,
    num_streams: int,
    before_request: Callable[[], None],
    on_arrival: Callable[[Sequence[int]], None] | None = None,
  ):
    """Makes a sampler; nothing is drawn before the first `sample`.

    Args:
      link: to the server.
      counts: of the table.
      layout: of the unrolls.
      mapper: of `unroll_items.Workers`.
      batch_size: B.
      num_blocks: blocks that a batch comes in.
      ahead: batches to draw ahead where the table's rules let them pass.
      num_streams: that fetch side by side; a queue's order needs one.
      before_request: runs before samples are asked for.
      on_arrival: see `SampleStreams`.
    """
    self._counts = counts
    self._mapper = mapper
    self._batch_size = batch_size
    self._is_queue = counts.config.sampler == 'fifo'
    self._num_blocks = num_blocks
    self._ahead = ahead
    self._before_request = before_request
    self._pool = blocks.BlockPool(layout, batch_size // num_blocks)
    self._streams = sample_stream.SampleStreams(
      link, counts.config.name, num_streams, on_arrival=on_arrival
    )
    self._lock = threading.Lock()
    # Sizes of the table when batches were asked for that are still to come;
    # how many of these no caller waits for; samples of the next that came.
    self._asked: collections.deque[int] = collections.deque()
    self._unclaimed = 0
    self._waiting = 0  # callers that ask for a batch of their own
    self._turn = threading.Lock()
    self._drawn: list[samples.Sample] = []

  def sample(self, timeout: float | None = None) -> base.Sample:
    """See `TrajectorySampler`.

    The time-out is for the table's rules; what they let pass has come over
    the network by then or is waited for.
    """
    self._claim(timeout)
    with self._lock:
      size = self._asked[0]
      while len(self._drawn) < self._num_items:
        self._drawn.append(self._streams.get())
      self._asked.popleft()
      drawn, self._drawn = self._drawn, []
    limit = self._counts.config.max_times_sampled
    last = sum(s.times_sampled == limit for s in drawn) if limit else 0
    self._counts.delivered(self._batch_size, last)
    self._ask_ahead()
    return self._decode(drawn, size)

  def interrupt(self) -> None:
    """Ends every wait in it."""
    self._streams.interrupt()

  def close(self) -> None:
    """Ends its threads too; at once where the connection is closed."""
    self._streams.close()

  @property
  def table(self) -> str:
    """Where it draws from."""
    return self._counts.config.name

  @property
  def undrawn(self) -> int:
    """Items that were asked for and have not come."""
    return self._streams.outstanding

  @property
  def _num_items(self) -> int:
    return self._num_blocks if self._is_queue else self._batch_size

  def _claim(self, timeout: float | None) -> None:
    """Returns when a batch is under way that nobody else takes."""
    with self._turn:
      if self._unclaimed:
        self._unclaimed -= 1
        return
      self._waiting += 1
    try:
      self._ask(timeout)
    finally:
      with self._turn:
        self._waiting -= 1

  def _ask(self, timeout: float | None) -> None:
    size = self._counts.admit_sample(self._batch_size, timeout)
    self._before_request()
    with self._lock:
      self._asked.append(size)
      self._streams.request(self._num_items)

  def _ask_ahead(self) -> None:
    # With the lock held, and not before those who wait: the last batch that
    # can be drawn would otherwise be theirs and nobody's.
    with self._turn:
      while self._unclaimed < self._ahead and not self._waiting:
        try:
          self._ask(0)
        except base.RateLimited:
          return
        self._unclaimed += 1

  def _decode(self, drawn: Sequence[samples.Sample], size: int) -> base.Sample:
    taken = [self._pool.take() for _ in range(self._num_blocks)]
    if self._is_queue:
      return self._decode_queue(drawn, taken, size)
    width = self._pool.width
    for i, block in enumerate(taken):
      part = drawn[i * width : (i + 1) * width]
      unroll_items.decode_unrolls(part, block, self._mapper)
    return base.Sample(
      blocks=taken,
      keys=np.array([s.key for s in drawn], np.uint64),
      probabilities=np.array([s.probability for s in drawn], np.float32),
      table_size=np.array([s.table_size for s in drawn], np.float32),
      priorities=np.array([s.priority for s in drawn]),
      on_release=self._release,
    )

  def _decode_queue(
    self,
    drawn: Sequence[samples.Sample],
    taken: Sequence[base.Block],
    size: int,
  ) -> base.Sample:
    priorities = [
      unroll_items.decode_block(sample, block, self._mapper)
      for sample, block in zip(drawn, taken, strict=True)
    ]
    columns = np.arange(self._pool.width, dtype=np.uint64)
    return base.Sample(
      blocks=taken,
      # An item's key is random: one that follows it is as good.
      keys=np.concatenate([np.uint64(s.key) + columns for s in drawn]),
      probabilities=np.ones(self._batch_size, np.float32),
      table_size=np.full(self._batch_size, size, np.float32),
      priorities=np.concatenate(priorities),
      on_release=self._release,
    )

  def _release(self, released: Sequence[base.Block]) -> None:
    for block in released:
      self._pool.give_back(block)
