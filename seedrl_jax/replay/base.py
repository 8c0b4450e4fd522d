"""The trajectory store's contract: queues and replays of unrolls.

Sizes, counts and capacities are in unrolls. A *block* is W unrolls side by
side, laid out for training.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import table_configs


class StoreClosed(RuntimeError):
  """Raised if the store is closed, also during a wait."""


class RateLimited(TimeoutError):
  """Raised if the table's rules refuse a call that must not wait."""


class CheckpointError(ValueError):
  """Raised if a checkpoint cannot be read or does not fit the store."""


@dataclasses.dataclass(frozen=True)
class TableInfo:
  """The state of a table; counts are in unrolls.

  Inserts and samples count since the table was first made, restores included.
  Waits are sums over all threads, including waits in progress.
  """

  config: table_configs.TableConfig
  size: int
  inserts: int
  samples: int
  writer_wait_seconds: float
  sampler_wait_seconds: float
  waiting_writers: int
  waiting_samplers: int

  @property
  def samples_per_insert(self) -> float:
    """The measured ratio since `min_size` was reached; 0 before."""
    # The first `min_size` inserts would distort it for long.
    counted = self.inserts - self.config.min_size + 1
    return self.samples / counted if counted > 0 else 0.0

  def filling(self) -> str:
    """Returns the progress towards `min_size` as text; '' once reached."""
    if self.samples or self.size >= self.config.min_size:
      return ''
    return f'the replay ({self.size} of {self.config.min_size} unrolls)'

  def metrics(self, prefix: str = 'replay') -> dict[str, float]:
    """Returns scalars to log, by `prefix/name`."""
    values = {
      'size_unrolls': self.size,
      'inserted_unrolls': self.inserts,
      'sampled_unrolls': self.samples,
      'samples_per_insert': self.samples_per_insert,
      'writer_wait_s': self.writer_wait_seconds,
      'sampler_wait_s': self.sampler_wait_seconds,
    }
    return {f'{prefix}/{name}': value for name, value in values.items()}


@dataclasses.dataclass(eq=False, slots=True)
class Block:
  """W unrolls laid out for training.

  Leaves under `unroll.steps` are `[T + 1, W, ...]`, the others `[W, ...]`,
  contiguous and 64-byte aligned so that JAX may alias them. Fresh blocks hold
  arbitrary values.
  """

  unroll: types.Unroll
  leaves: list[np.ndarray]  # the same arrays in the order of `nest.flatten`
  width: int  # W

  def as_batch(self, weight: np.ndarray) -> types.Batch:
    """Returns the block with its unrolls' weights, float32 `[W]`."""
    return types.Batch(self.unroll, weight)

  def versions(self) -> np.ndarray:
    """Returns the parameter versions of its transitions, int `[T, W]`."""
    # The last step's action is of the next unroll.
    return self.unroll.steps.parameter_version[:-1]


@dataclasses.dataclass(eq=False, slots=True)
class Sample:
  """A batch of B unrolls: the columns of equal blocks, concatenated.

  The blocks are read-only and valid until `release`.
  """

  blocks: Sequence[Block]
  on_release: Callable[[Sequence[Block]], None]  # recycles the blocks

  def importance_weights(self, exponent: float) -> np.ndarray:
    """Returns float32 `[B]`: ones, as a queue draws every unroll once."""
    del exponent
    return np.ones(sum(block.width for block in self.blocks), np.float32)

  def update_priorities(self, priorities: np.ndarray) -> None:
    """Sets the priorities, float `[B]`; a queue ignores them."""

  def release(self) -> None:
    """Recycles the blocks; later calls do nothing.

    JAX on CPU may alias the memory: call this only after the update that read
    the batch has finished.
    """
    blocks, self.blocks = self.blocks, ()
    if blocks:
      self.on_release(blocks)


@dataclasses.dataclass(eq=False, slots=True)
class ReplaySample(Sample):
  """A batch of B unrolls drawn by priority, and their state at the draw."""

  keys: np.ndarray  # uint64 `[B]`, for `Table.update_priorities`
  probabilities: np.ndarray  # float32 `[B]`
  table_size: np.ndarray  # float32 `[B]`, in unrolls
  priorities: np.ndarray  # float64 `[B]`
  on_update: Callable[[np.ndarray], None]  # takes the new priorities

  def importance_weights(self, exponent: float) -> np.ndarray:
    """Returns importance-sampling weights (N P)^-beta, float32 `[B]`.

    N is the table's size, P the unroll's probability, beta the exponent (Schaul
    et al. 2016, arXiv 1511.05952, section 3.4). The weights are finite and not
    yet divided by the largest.
    """
    expected = self.probabilities.astype(np.float64) * self.table_size
    # A probability that rounds to 0 must not make all other weights vanish.
    rounded = expected < np.finfo(np.float32).tiny
    expected[rounded] = expected[~rounded].min(initial=1.0)
    return (expected**-exponent).astype(np.float32)

  def update_priorities(self, priorities: np.ndarray) -> None:
    """Sets the priorities, float `[B]`; see `Table.update_priorities`."""
    self.on_update(priorities)


class TrajectorySampler(abc.ABC):
  """Draws batches of unrolls; any thread may call it."""

  @abc.abstractmethod
  def sample(self, wait: bool = True) -> Sample:
    """Draws a batch; waits while the table's rules refuse it.

    Raises StoreClosed if the store is closed, before or during the wait, and
    RateLimited if it would have to wait and `wait` is false.
    """


class Table(abc.ABC):
  """A queue or a replay; any thread may call it.

  A queue draws whole blocks in order, each once; writers wait while it is full.
  A replay draws single unrolls with replacement; it removes the oldest if full.
  """

  config: table_configs.TableConfig
  block_width: int

  @abc.abstractmethod
  def allocate(self) -> Block:
    """Returns a block to fill, without waiting."""

  @abc.abstractmethod
  def insert(self, block: Block, priorities: np.ndarray | None = None) -> None:
    """Inserts a block; waits while the table's rules refuse it.

    Args:
      block: from `allocate`; the caller must not touch it afterwards, unless
        this raises.
      priorities: float `[W]`, finite and not negative; None: ones. A queue
        ignores them.

    Raises StoreClosed if the store is closed, before or during the wait.
    """

  def sampler(
    self, batch_size: int, num_blocks: int | None = None
  ) -> TrajectorySampler:
    """Returns a sampler of batches of `batch_size` unrolls.

    Args:
      num_blocks: blocks per batch, such as one per training device. None: in a
        queue as many as `batch_size` fills, else 1.

    Raises ValueError if the table cannot give such batches.
    """
    count = self.config.num_blocks(batch_size, num_blocks, self.block_width)
    return self._make_sampler(batch_size, count)

  @abc.abstractmethod
  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Sets priorities, float `[n]`, of `keys`, uint64 `[n]`; does not wait.

    Draws may use the old priorities until `flush`. Keys that have left the
    table are ignored; of a repeated key the last priority counts. A queue
    ignores all.

    Raises ValueError if priorities are negative or not finite.
    """

  @abc.abstractmethod
  def interrupt(self) -> None:
    """See `TrajectoryStore`."""

  @abc.abstractmethod
  def _make_sampler(
    self, batch_size: int, num_blocks: int
  ) -> TrajectorySampler: ...


class TrajectoryStore(abc.ABC):
  """Tables by name, for unrolls like `unroll_spec`; thread-safe."""

  is_saved = True  # whether its contents are part of checkpoints
  unroll_spec: types.Unroll  # of `types.ArraySpec`, without a batch dimension
  overlap: int  # steps that consecutive unrolls of an environment share
  _tables: Mapping[str, Table]

  @property
  def address(self) -> str | None:
    """The address for other processes; None if they have no access."""
    return None

  def table(self, name: str) -> Table:
    """Returns a table; raises KeyError if there is none of that name."""
    return self._tables[name]

  @abc.abstractmethod
  def flush(self) -> None:
    """Waits for earlier inserts and updates; StoreClosed on a `close`."""

  @abc.abstractmethod
  def info(self) -> Mapping[str, TableInfo]:
    """Returns the state of every table; what is in flight does not count."""

  @abc.abstractmethod
  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """Saves all tables in `path`, which appears only when it is complete.

    Args:
      path: of the new checkpoint; its folder is made if needed.
      on_snapshot: called in this thread once later changes are no longer
        saved; writing may take minutes more. Called again if the request is
        repeated after a loss, never if saving fails before.

    Raises OSError if it cannot be written; what was there before is kept.
    """

  @abc.abstractmethod
  def restore(self, path: str) -> None:
    """Replaces the tables' contents by the checkpoint `path`.

    Call it before writers and samplers start. This store's rules stay; if
    `max_size` is smaller than what was saved, the newest unrolls are kept.

    Raises CheckpointError if it cannot be read or does not fit; the table that
    failed is empty, those not yet read are unchanged.
    """

  def interrupt(self) -> None:
    """Wakes every waiter with `StoreClosed`, and refuses later callers.

    `info`, `update_priorities`, `checkpoint` and `Sample.release` still work.
    Earlier inserts are still sent to a server.
    """
    for table in self._tables.values():
      table.interrupt()

  @abc.abstractmethod
  def close(self) -> None:
    """Interrupts and frees everything; later calls do nothing."""


def check_priorities(priorities: np.ndarray | None, size: int) -> np.ndarray:
  """Returns float64 `[size]`, ones for None; ValueError if they are invalid."""
  if priorities is None:
    return np.ones(size)
  array = np.asarray(priorities, np.float64)
  if array.shape != (size,):
    raise ValueError(f'Priorities are {array.shape}; they must be ({size},).')
  if not (np.isfinite(array).all() and (array >= 0).all()):
    raise ValueError(
      'Priorities must be finite and not negative; a loss that diverged gives '
      'others.'
    )
  return array
