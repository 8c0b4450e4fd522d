"""The embedded store's replay: unrolls drawn by priority or uniformly.

Copies, which take milliseconds for Atari, run outside the table's lock, so that
writers and samplers work in parallel.
"""

import contextlib
import functools

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import (
  base,
  blocks,
  checkpoints,
  table_configs,
)
from seedrl_jax.replay.embedded import slots, tables


class EmbeddedReplay(tables.EmbeddedTable):
  """Draws unrolls with replacement; removes the oldest if full."""

  config: table_configs.ReplayConfig

  def __init__(
    self,
    config: table_configs.ReplayConfig,
    pool: blocks.BlockPool,
    seed: int | None,
  ):
    """Raises MemoryError if the machine cannot hold `max_size` unrolls."""
    super().__init__(config, pool)
    # Two spare blocks: one can be filled while the table is full.
    self._num_slots = config.max_size + 2 * pool.width
    self._storage = slots.SlotStorage(pool.layout, self._num_slots)
    self._pools = {pool.width: pool}
    self._rng = np.random.default_rng(seed)
    self._limiter = table_configs.RateLimiter(config, pool.width)
    self._clear()

  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> tables.EmbeddedSampler:
    width = batch_size // num_blocks
    with self._lock:
      if width not in self._pools:
        self._pools[width] = blocks.BlockPool(self._layout, width)
      self._limiter.widen(batch_size)
      self._wake()
    return super()._make_sampler(batch_size, num_blocks)

  def insert(
    self, block: base.Block, priorities: np.ndarray | None = None
  ) -> None:
    checked = base.check_priorities(priorities, block.width)
    with self._lock:
      self._writers.enter(lambda: self._can_insert(block.width))
      keys = self._slots.reserve(block.width)
      self._limiter.inserts += block.width
      self._pending += block.width
      self._wake()
    self._storage.put(self._slots.slots(keys), block)
    with self._lock:
      self._pending -= block.width
      self._slots.publish(keys, checked)
      self._slots.trim(self.config.max_size)
      self._wake()
    self._pool.give_back([block])

  def draw(self, batch_size: int, num_blocks: int, wait: bool) -> base.Sample:
    with self._lock:
      self._samplers.enter(
        lambda: self._limiter.can_sample(
          batch_size, self._slots.size, self._slots.drawable
        ),
        wait,
      )
      size = self._slots.size
      chosen, probabilities = self._slots.draw(batch_size)
      keys = self._slots.keys[chosen]
      priorities = self._slots.priorities[chosen]
      self._slots.pin(chosen)
      self._slots.remove(self._slots.exhausted(chosen))
      self._limiter.samples += batch_size
      pool = self._pools[batch_size // num_blocks]
      self._wake()
    gathered = [pool.take() for _ in range(num_blocks)]
    for block, part in zip(
      gathered, chosen.reshape(-1, pool.width), strict=True
    ):
      self._storage.get(part, block)
    self._unpin(chosen)
    return base.ReplaySample(
      blocks=gathered,
      on_release=pool.give_back,
      keys=keys,
      probabilities=probabilities.astype(np.float32),
      table_size=np.full(batch_size, size, np.float32),
      priorities=priorities,
      on_update=functools.partial(self.update_priorities, keys),
    )

  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """See `Table`; takes effect at once."""
    checked = base.check_priorities(priorities, len(keys))
    with self._lock:
      live, places = self._slots.find(np.asarray(keys, np.uint64))
      self._slots.set_priorities(places, checked[live])

  def snapshot(self, held: contextlib.ExitStack) -> tables.Save:
    """See `EmbeddedTable`; writers go on until the table is full."""
    with self._lock:
      live = self._slots.live()
      self._slots.pin(live)
      held.callback(self._unpin, live)
      meta = {
        'inserts': self._limiter.inserts,
        'samples': self._limiter.samples,
        'rng': self._rng.bit_generator.state,
      }
      arrays = {
        'keys': self._slots.keys[live],
        'priorities': self._slots.priorities[live],
        'times_sampled': self._slots.times_sampled[live],
      }

    def save(writer: checkpoints.ArchiveWriter) -> None:
      writer.meta[self.config.name] = meta
      for name, array in arrays.items():
        writer.add_array(self._member(name), array)
      for leaf, spec in enumerate(self._layout.specs):
        pieces = self._storage.leaf_pieces(leaf, live)
        writer.add_rows(self._member(leaf), len(live), spec, pieces)

    return save

  def load(self, reader: checkpoints.ArchiveReader) -> None:
    """See `EmbeddedTable`; keys stay valid if the table's size is the same."""

    def column(name: str, dtype: type) -> np.ndarray:
      spec = types.ArraySpec((), np.dtype(dtype))
      return reader.array(self._member(name), spec)

    with self._lock, contextlib.ExitStack() as on_failure:
      self._clear()
      on_failure.callback(self._clear)
      meta = reader.meta[self.config.name]
      keys = column('keys', np.uint64)
      skip = max(0, len(keys) - self.config.max_size)
      priorities = column('priorities', np.float64)[skip:]
      places = self._slots.restore(
        keys[skip:],
        base.check_priorities(priorities, len(keys) - skip),
        column('times_sampled', np.int64)[skip:],
      )
      for leaf, spec in enumerate(self._layout.specs):
        pieces = reader.rows(self._member(leaf), spec, skip)
        self._storage.load_leaf(leaf, places, pieces)
      self._slots.remove(self._slots.exhausted(places))
      self._limiter.inserts = meta['inserts']
      self._limiter.samples = meta['samples']
      self._rng.bit_generator.state = meta['rng']
      on_failure.pop_all()
      self._wake()

  def _clear(self) -> None:
    rules = self.config
    self._pending = 0
    self._slots = slots.Slots(
      self._num_slots,
      rules.priority_exponent if rules.sampler == 'prioritized' else 0.0,
      rules.max_times_sampled,
      self._rng,
    )
    self._limiter.inserts = self._limiter.samples = 0

  def _can_insert(self, n: int) -> bool:
    if not self._slots.has_room(n):
      return False
    size = self._slots.size + self._pending
    arriving = self._pending * self.config.max_times_sampled
    return self._limiter.can_insert(n, size, self._slots.drawable + arriving)

  def _unpin(self, items: np.ndarray) -> None:
    with self._lock:
      self._slots.unpin(items)
      self._wake()

  def _counts(self) -> tuple[int, int, int]:
    return self._slots.size, self._limiter.inserts, self._limiter.samples
