"""The trajectory store's contract: queues and replays of unrolls.

Inference writes unrolls, the learner draws batches of them. A `Queue` hands
over whole blocks in order, each once; a `Replay` draws single unrolls by
priority. Sizes, counts and capacities are in unrolls everywhere; a *block* is
W unrolls side by side, laid out for training.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import table_configs

_Table = TypeVar('_Table', bound='Table')


class StoreClosed(RuntimeError):
  """The store was closed, perhaps while the caller waited in it."""


class RateLimited(TimeoutError):
  """The table's rules do not let the caller pass now."""


class CheckpointError(ValueError):
  """A checkpoint cannot be read, or does not fit this store."""


@dataclasses.dataclass(frozen=True)
class TableInfo:
  """The state of a table; counts are in unrolls.

  Attributes:
    config: its rules.
    size: unrolls in it now.
    inserts, samples: since the table was first made; restoring keeps them.
    writer_wait_seconds, sampler_wait_seconds: what all threads together have
      waited, including waits that still go on.
    waiting_writers, waiting_samplers: threads that wait now.
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
    """The measured ratio since `min_size` was reached; 0 before.

    The first `min_size` inserts are not counted: they would hide for long
    which ratio the table really keeps.
    """
    counted = self.inserts - self.config.min_size + 1
    return self.samples / counted if counted > 0 else 0.0

  def filling(self) -> str:
    """Returns how far the table is from its least size; '' once it has it."""
    if self.samples or self.size >= self.config.min_size:
      return ''
    return f'the replay ({self.size} of {self.config.min_size} unrolls)'

  def metrics(self, prefix: str = 'replay') -> dict[str, float]:
    """Returns the values for a run's curves, by `prefix/name`."""
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
  """W unrolls in storage laid out for training.

  Attributes:
    unroll: `types.Unroll`; leaves under `steps` are `[T + 1, W, ...]`, the
      others `[W, ...]`, each contiguous and 64-byte aligned (so that JAX may
      alias instead of copying). Fresh blocks hold arbitrary values.
    leaves: the same arrays as a list, in the order of `nest.flatten`.
    width: W.
    lent: whether a writer owns it: true from `allocate` to `insert`.
  """

  unroll: types.Unroll
  leaves: list[np.ndarray]
  width: int
  lent: bool = False


@dataclasses.dataclass(eq=False, slots=True)
class Sample:
  """A batch of B unrolls.

  Attributes:
    blocks: equal blocks whose columns, one after the other, are the batch's;
      read only, until `release`.
    on_release: takes the blocks back.
  """

  blocks: Sequence[Block]
  on_release: Callable[[Sequence[Block]], None]

  def importance_weights(self, exponent: float) -> np.ndarray:
    """Returns float32 `[B]`; ones, as a queue draws every unroll once."""
    del exponent
    return np.ones(sum(block.width for block in self.blocks), np.float32)

  def update_priorities(self, priorities: np.ndarray) -> None:
    """Sets the priorities, float `[B]`; a queue has none and ignores them."""

  def release(self) -> None:
    """Gives the blocks' memory back once nothing reads them any more.

    JAX on CPU may alias the memory, so that means: when the update that read
    the batch has finished. Further calls do nothing.
    """
    blocks, self.blocks = self.blocks, ()
    if blocks:
      self.on_release(blocks)


@dataclasses.dataclass(eq=False, slots=True)
class ReplaySample(Sample):
  """A batch of B unrolls that were drawn by their priorities.

  Attributes:
    keys: uint64 `[B]`, the unrolls' names in `Replay.update_priorities`.
    probabilities: float32 `[B]`, chance with which each was drawn.
    table_size: float32 `[B]`, unrolls in the table when it was drawn.
    priorities: float64 `[B]`, when it was drawn.
    on_update: takes the batch's new priorities.
  """

  keys: np.ndarray
  probabilities: np.ndarray
  table_size: np.ndarray
  priorities: np.ndarray
  on_update: Callable[[np.ndarray], None]

  def importance_weights(self, exponent: float) -> np.ndarray:
    """Returns the weights that undo the bias of drawing some unrolls more.

    Args:
      exponent: beta of Schaul et al. 2016 (arXiv 1511.05952, section 3.4); 1
        undoes all of it, 0 nothing.

    Returns:
      float32 `[B]`, (N P)^-beta with N the table's size and P an unroll's
      chance; finite, not yet divided by the largest.
    """
    expected = self.probabilities.astype(np.float64) * self.table_size
    # A chance that rounds to 0 says no more than that the unroll was among the
    # least likely. Its weight must not make all others vanish beside it.
    rounded = expected < np.finfo(np.float32).tiny
    expected[rounded] = expected[~rounded].min(initial=1.0)
    return (expected**-exponent).astype(np.float32)

  def update_priorities(self, priorities: np.ndarray) -> None:
    """Sets the priorities, float `[B]`; as `Replay.update_priorities`."""
    self.on_update(priorities)


class TrajectoryWriter(abc.ABC):
  """Takes blocks of unrolls; any thread may call it."""

  @abc.abstractmethod
  def allocate(self) -> Block:
    """Lends a recycled block of the table's width; never waits.

    Raises:
      StoreClosed: after `interrupt`.
    """

  @abc.abstractmethod
  def insert(self, block: Block, priorities: np.ndarray | None = None) -> None:
    """Hands a block over; waits while the table's rules refuse it.

    Args:
      block: from `allocate`. The caller must not touch it afterwards; if an
        error is raised, it is still the caller's.
      priorities: float `[W]`, finite and not negative; None: 1 each. A queue
        ignores them.

    Raises:
      StoreClosed: if the store is closed, before or during the wait.
      ValueError: for a block that is not the caller's, or bad priorities.
    """


class TrajectorySampler(abc.ABC):
  """Draws batches of unrolls; any thread may call it."""

  @abc.abstractmethod
  def sample(self, wait: bool = True) -> Sample:
    """Draws a batch; waits while the table's rules refuse it.

    Raises:
      StoreClosed: if the store is closed, before or during the wait.
      RateLimited: if the rules refuse it and `wait` is false.
    """


class Table(TrajectoryWriter):
  """What a queue and a replay have in common.

  Attributes:
    config: its rules.
  """

  config: table_configs.TableConfig

  @abc.abstractmethod
  def sampler(
    self, batch_size: int, num_blocks: int | None = None
  ) -> TrajectorySampler:
    """Returns a sampler of batches.

    Args:
      batch_size: unrolls per batch.
      num_blocks: blocks that a batch comes in, say one for each training
        device. None: in a queue as many as `batch_size` holds, else 1.

    Raises:
      ValueError: if the table cannot give such batches.
    """


class Queue(Table):
  """Whole blocks in order of arrival, each drawn once. Full: writers wait."""


class Replay(Table):
  """Unrolls drawn independently, with replacement; samples are `ReplaySample`s.

  The oldest unroll gives way when the table is full.
  """

  @abc.abstractmethod
  def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
    """Sets priorities, float `[n]`, of `keys`, uint64 `[n]`.

    Returns at once; a draw may still go by the old priorities, until `flush`.
    Keys that have left the table are ignored. If a key comes twice, its last
    priority counts.

    Raises:
      ValueError: for priorities that are negative or not finite.
    """


class TrajectoryStore(abc.ABC):
  """Tables by name, and their life cycle. Any thread may call every method.

  Attributes:
    unroll_spec: `types.Unroll` of `types.ArraySpec`: what one unroll is.
    overlap: steps that consecutive unrolls of an environment share.
  """

  unroll_spec: types.Unroll
  overlap: int

  @abc.abstractmethod
  def table(self, name: str) -> Table:
    """Returns a table; ValueError if there is none of that name."""

  @abc.abstractmethod
  def flush(self) -> None:
    """Returns when the tables have what was inserted and changed before.

    Raises:
      StoreClosed: if the store is closed meanwhile.
    """

  @abc.abstractmethod
  def info(self) -> Mapping[str, TableInfo]:
    """Returns the state of every table by name."""

  @abc.abstractmethod
  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """Saves all tables in `path`, which appears only when it is complete.

    Args:
      path: of the new checkpoint; its folder is made if needed.
      on_snapshot: called in this thread once nothing that changes in the
        tables from then on is saved; writing may take minutes more. Called
        again if a lost server is asked anew, never if that fails before.

    Raises:
      OSError: if it cannot be written; what was there before is kept.
    """

  @abc.abstractmethod
  def restore(self, path: str) -> None:
    """Replaces the tables' contents by what `checkpoint` saved in `path`.

    To be called before writers and samplers start. The rules stay those of
    this store's configuration; if `max_size` is smaller than what was saved,
    the newest unrolls are kept.

    Raises:
      CheckpointError: in one sentence; tables not yet read stay as they were,
        the one that failed is empty.
    """

  @abc.abstractmethod
  def interrupt(self) -> None:
    """Wakes every waiter with `StoreClosed`, and refuses later callers.

    `info`, `update_priorities`, `checkpoint` and `Sample.release` go on
    working.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Interrupts and frees everything; later calls do nothing."""


def find_table(tables: Mapping[str, _Table], name: str) -> _Table:
  """Returns a table by name; ValueError if there is none."""
  try:
    return tables[name]
  except KeyError:
    known = ', '.join(tables)
    raise ValueError(f'There is no table {name}, only {known}.') from None


def check_priorities(priorities: np.ndarray | None, size: int) -> np.ndarray:
  """Returns float64 `[size]` priorities; None becomes ones.

  Raises:
    ValueError: if they are negative, not finite, or of another shape.
  """
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
