"""A queue of unrolls that stay on their devices.

It passes on handles: arrays of JAX, which this module never reads. Unrolls of
remote actors are blocks on the host; a batch has unrolls of one kind.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base, blocks, table_configs
from seedrl_jax.replay.embedded import store, tables

# The table that takes blocks of remote actors' unrolls.
REMOTE_TABLE = 'remote unrolls'


@dataclasses.dataclass(eq=False, slots=True)
class DeviceBlock(base.Block):
  """W unrolls on a device; the other attributes are empty.

  Attributes:
    batch: with a leading axis of 1, as an update takes it.
    version: of the parameters that acted.
  """

  batch: Any = None
  version: int = types.NO_VERSION

  def as_batch(self, weight: np.ndarray) -> types.Batch:
    """Returns the batch, whose weights are 1 on the device already."""
    return self.batch

  def versions(self) -> np.ndarray:
    return np.full((1, self.width), self.version)


class _Pool(blocks.BlockPool):
  """Makes empty blocks; drops used ones, and so their arrays."""

  def take(self) -> DeviceBlock:
    nothing: Any = ()
    return DeviceBlock(types.Unroll(*[nothing] * 3), [], self.width)

  def give_back(self, used: Iterable[base.Block]) -> None:
    """Does nothing."""


class _Queue(tables.EmbeddedQueue):
  """A queue whose unrolls begin when the learner is about to need them.

  A call acts for several batches at once, and far faster than the learner
  trains. If it did so while batches wait, these would only grow older.
  """

  def __init__(
    self,
    config: table_configs.QueueConfig,
    pool: blocks.BlockPool,
    num_blocks: int,
  ):
    super().__init__(config, pool)
    self._num_blocks = num_blocks
    self.remote = tables.EmbeddedQueue(
      dataclasses.replace(config, name=REMOTE_TABLE),
      blocks.BlockPool(pool.layout, pool.width),
      samplers=self._samplers,
    )
    # They take turns if both have a batch.
    self._sources = [self, self.remote]

  def allocate(self) -> base.Block:
    """Waits while the queue has a batch; raises StoreClosed after that."""
    with self._lock:
      self._writers.enter(lambda: len(self._blocks) < self._num_blocks)
      # The next in line may enter, too.
      self._wake()
    return super().allocate()

  def draw(self, batch_size: int, num_blocks: int, wait: bool) -> base.Sample:
    """Draws a batch of the source that has one."""

    def ready() -> list[tables.EmbeddedQueue]:
      return [x for x in self._sources if len(x._blocks) >= num_blocks]

    with self._lock:
      self._samplers.enter(lambda: bool(ready()), wait)
      source = ready()[0]
      self._sources.remove(source)
      self._sources.append(source)
      return source._take(batch_size, num_blocks)

  def _counts(self) -> tuple[int, int, int]:
    device, remote = super()._counts(), self.remote._counts()
    size, inserts, samples = map(sum, zip(device, remote, strict=True))
    return size, inserts, samples


class DeviceStore(store.EmbeddedStore):
  """A queue of `DeviceBlock`s, which is not saved.

  `num_blocks` are one batch. `REMOTE_TABLE` takes unrolls of remote actors, of
  which samplers of the queue draw whole batches.
  """

  is_saved = False

  def __init__(
    self,
    config: table_configs.QueueConfig,
    unroll_spec: types.Unroll,
    block_width: int,
    num_blocks: int,
  ):
    super().__init__((), unroll_spec, block_width)
    pool = _Pool(self._layout, block_width)
    self._queue = _Queue(config, pool, num_blocks)
    self._tables = {config.name: self._queue, REMOTE_TABLE: self._queue.remote}

  def info(self) -> Mapping[str, base.TableInfo]:
    return {self._queue.config.name: self._queue.info()}
