"""The trajectory store's seam: what writers, samplers and backends agree on.

`inference` writes unrolls through a `TrajectoryWriter`, `learner` reads
batches through a `TrajectorySampler`, `system` makes the store (`factory.py`),
reports its `info` and checkpoints it. Sizes, counts and capacities are in
unrolls everywhere; a *block* is W unrolls side by side, laid out for training.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from seedrl_jax import types

# Of `TrajectoryStore.flush`.
FLUSH_SECONDS = 10.0


class StoreClosed(RuntimeError):
  """The store was closed, perhaps while the caller waited in it."""


class RateLimited(TimeoutError):
  """The table's rules did not let the caller pass before its time-out."""


class CheckpointError(ValueError):
  """A checkpoint cannot be read, or is not one of this store."""


@dataclasses.dataclass(frozen=True)
class TableConfig:
  """The rules of one table. The oldest unroll is always removed first.

  Attributes:
    name: what writers and samplers call it.
    sampler: 'fifo' (a queue: whole blocks in order, each once, writers wait
      while it is full), 'uniform', or 'prioritized' (unrolls independently,
      with replacement; the oldest gives way where the table is full).
    max_size: unrolls it holds at most.
    max_times_sampled: samples after which an unroll is removed; 0: never.
    samples_per_insert: how often an unroll is sampled on average; whoever runs
      ahead waits. 0: no ratio is kept. A queue's is 1.
    tolerance: how far samples may run ahead of or behind that ratio, as a
      share of `min_size * samples_per_insert`. Never less than one insert and
      one batch need (see `rate_limiter.py`).
    min_size: unrolls without which nothing is sampled. A queue's is 1.
    priority_exponent: a prioritized unroll is drawn with probability
      p^exponent / sum of p^exponent (Schaul et al. 2016, arXiv 1511.05952,
      equation 1).
    block_width: unrolls that a writer hands over at once; None: the store's.
  """

  name: str
  sampler: str
  max_size: int
  max_times_sampled: int = 0
  samples_per_insert: float = 1.0
  tolerance: float = 0.1
  min_size: int = 1
  priority_exponent: float = 0.9
  block_width: int | None = None

  @classmethod
  def queue(cls, name: str, max_size: int) -> 'TableConfig':
    """Returns a FIFO queue of at most `max_size` unrolls."""
    return cls(name, 'fifo', max_size, max_times_sampled=1)

  def __post_init__(self) -> None:
    if not 1 <= self.min_size <= self.max_size:
      fix = f'give 1 to max_size ({self.max_size})'
      raise _bad('min_size', self.min_size, fix)
    if self.sampler == 'fifo':
      self._check_queue()
    elif 0 < self.max_times_sampled < self.samples_per_insert:
      fix = (
        f'max_times_sampled={self.max_times_sampled} never reaches that; '
        'lower one or raise the other (0: no limit)'
      )
      raise _bad('samples_per_insert', self.samples_per_insert, fix)

  def _check_queue(self) -> None:
    for field in ('max_times_sampled', 'samples_per_insert', 'min_size'):
      value = getattr(self, field)
      if value != 1:
        fix = "a fifo queue's is 1; leave it, or choose another sampler"
        raise _bad(field, value, fix)


def _bad(field: str, value: object, fix: str) -> ValueError:
  return ValueError(f'--config.replay.{field}={value}: {fix}.')


@dataclasses.dataclass(frozen=True)
class TableInfo:
  """What a table says of itself; counts are in unrolls.

  Attributes:
    config: its rules.
    size: unrolls in it now.
    inserts, samples: since it was made, reset, or first made where restored.
    writer_wait_seconds, sampler_wait_seconds: what all threads together have
      waited, including those that still do.
    waiting_writers, waiting_samplers: threads that wait now.
  """

  config: TableConfig
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

    What was inserted until then waits to be sampled as it arrives, and would
    hide for long what ratio the table really keeps.
    """
    counted = self.inserts - self.config.min_size + 1
    return self.samples / counted if counted > 0 else 0.0

  def filling(self) -> str:
    """Returns how far the table is from its least size; '' once it has it."""
    if self.samples or self.size >= self.config.min_size:
      return ''
    return f'the replay ({self.size} of {self.config.min_size} unrolls)'

  def metrics(self, prefix: str = 'replay') -> dict[str, float]:
    """Returns what of it belongs into a run's curves, by `prefix/name`."""
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
  """A batch of B unrolls; `blocks` side by side are its B columns.

  Attributes:
    blocks: equal blocks, one after the other; read only, until `release`.
    keys: uint64 `[B]`, what `update_priorities` calls the unrolls.
    probabilities: float32 `[B]`, chance with which each was drawn; 1 in FIFO.
    table_size: float32 `[B]`, unrolls in the table when it was drawn.
    priorities: float64 `[B]`, when it was drawn.
  """

  blocks: Sequence[Block]
  keys: np.ndarray
  probabilities: np.ndarray
  table_size: np.ndarray
  priorities: np.ndarray
  on_release: Callable[[Sequence[Block]], None]

  def importance_weights(self, exponent: float) -> np.ndarray:
    """Returns what undoes the bias of drawing some unrolls more often.

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

  def release(self) -> None:
    """Gives the blocks' memory back; call it when nothing reads them any more.

    JAX on CPU may alias the memory, so that means: when the update that read
    the batch has finished. Further calls do nothing.
    """
    blocks, self.blocks = self.blocks, ()
    if blocks:
      self.on_release(blocks)


class TrajectoryWriter(abc.ABC):
  """Puts blocks of unrolls into one table; any thread may call it."""

  @abc.abstractmethod
  def allocate(self) -> Block:
    """Lends a recycled block of the table's width; never waits.

    Raises:
      StoreClosed: after `close`.
    """

  @abc.abstractmethod
  def insert(
    self,
    block: Block,
    priorities: np.ndarray | None = None,
    timeout: float | None = None,
  ) -> None:
    """Hands a block over; waits while the table's rules refuse it.

    Args:
      block: from `allocate` of this store. The caller must not touch it
        afterwards; where an error is raised, it is still the caller's.
      priorities: float `[W]`, finite and not negative; None: 1 each.
      timeout: seconds to wait; None: as long as it takes, 0: not at all.

    Raises:
      StoreClosed: where the store is closed, before or during the wait.
      RateLimited: after `timeout`.
      ValueError: for a block that is not the caller's, or bad priorities.
    """


class TrajectorySampler(abc.ABC):
  """Draws batches of unrolls from one table; any thread may call it."""

  @abc.abstractmethod
  def sample(self, timeout: float | None = None) -> Sample:
    """Draws a batch; waits while the table's rules refuse it.

    Args:
      timeout: as in `TrajectoryWriter.insert`.

    Raises:
      StoreClosed: where the store is closed, before or during the wait.
      RateLimited: after `timeout`.
    """


class TrajectoryStore(abc.ABC):
  """Tables of unrolls by name. Everything may be called from any thread.

  An unknown table's name is a ValueError in every method.

  Attributes:
    unroll_spec: `types.Unroll` of `types.ArraySpec`: what one unroll is.
    overlap: steps that consecutive unrolls of an environment share.
  """

  unroll_spec: types.Unroll
  overlap: int

  @abc.abstractmethod
  def writer(self, table: str) -> TrajectoryWriter:
    """Returns a writer to `table`."""

  @abc.abstractmethod
  def sampler(
    self, table: str, batch_size: int, num_blocks: int | None = None
  ) -> TrajectorySampler:
    """Returns a sampler of batches from `table`.

    Args:
      table: its name.
      batch_size: unrolls per batch.
      num_blocks: blocks that a batch comes in, say one for each training
        device. None: in a queue as many as `batch_size` holds, else 1.

    Raises:
      ValueError: where such batches cannot be had from this table.
    """

  @abc.abstractmethod
  def update_priorities(
    self, table: str, keys: np.ndarray, priorities: np.ndarray
  ) -> None:
    """Sets priorities, float `[n]`, of `keys`, uint64 `[n]`.

    Keys that have left the table are ignored; in a queue that is all of them.
    Where a key comes twice, its last priority counts.

    Raises:
      ValueError: for priorities that are negative or not finite.
    """

  @abc.abstractmethod
  def flush(self, timeout: float | None = FLUSH_SECONDS) -> None:
    """Returns when the tables have what was inserted and changed before.

    Args:
      timeout: seconds for each table; what it cannot take within these, as its
        rules wait for samples, say, stays on its way. None: no limit.

    Raises:
      StoreClosed: where the store is closed meanwhile.
    """

  @abc.abstractmethod
  def info(self) -> Mapping[str, TableInfo]:
    """Returns the state of every table by name."""

  @abc.abstractmethod
  def reset(self, table: str) -> None:
    """Removes everything from `table` and sets its counts to zero."""

  @abc.abstractmethod
  def checkpoint(
    self, path: str, on_snapshot: Callable[[], None] | None = None
  ) -> None:
    """Saves all tables in `path`, which appears only when it is complete.

    Args:
      path: where; the folder that holds it is made.
      on_snapshot: called in this thread once nothing that changes in the
        tables from then on is saved; writing may take minutes more. Called
        again where a lost server is asked anew, never where that fails before.

    Raises:
      OSError: where it cannot be written; what was there before is kept.
    """

  @abc.abstractmethod
  def restore(self, path: str) -> None:
    """Replaces what the tables hold by what `checkpoint` saved in `path`.

    To be called before writers and samplers start. The rules stay those of
    this store's configuration; where `max_size` is smaller than what was
    saved, the newest unrolls are kept.

    Raises:
      CheckpointError: in one sentence; tables not yet read stay as they were,
        the one that failed is empty.
    """

  @abc.abstractmethod
  def interrupt(self) -> None:
    """Wakes every waiter with `StoreClosed` and lets nobody in any more.

    `info`, `update_priorities`, `checkpoint` and `Sample.release` go on
    working.
    """

  @abc.abstractmethod
  def close(self) -> None:
    """Interrupts and gives everything back; later calls do nothing."""


def check_priorities(priorities: np.ndarray | None, size: int) -> np.ndarray:
  """Returns float64 `[size]` priorities; None becomes ones.

  Raises:
    ValueError: where they are negative, not finite, or of another shape.
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
