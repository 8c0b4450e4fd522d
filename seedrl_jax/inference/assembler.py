"""Assembles unrolls on the host, from batches of single steps.

The store provides blocks of W columns, `[T + 1, W, ...]`, as for training. Each
environment fills one column at a time, in place: each step is written once, but
for those that the next unroll shares. Environments that are side by side at the
same step, as most batches are, are written with one slice for each array.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import specs
from seedrl_jax.replay import base as replay

# Returns leaves `[m, ...]` of the core state before the step, of rows int `[m]`
# of a batch; empty if the agent has none.
TakeCore = Callable[[np.ndarray], list[np.ndarray]]
# Returns the priorities, float `[W]`, of a block.
Priorities = Callable[[types.Unroll], np.ndarray]


class BlockWriter(Protocol):
  """Lends blocks and takes them full; see `replay.base.Table`."""

  def allocate(self) -> replay.Block: ...

  def insert(
    self, block: replay.Block, priorities: np.ndarray | None = None
  ) -> None: ...


def make_priorities(
  agent: base.Agent, spec: types.Unroll, width: int, device: jax.Device
) -> Priorities | None:
  """Compiles the agent's initial priorities of blocks; None if it has none."""
  if agent.initial_priorities is None:
    return None
  compute = jax.jit(agent.initial_priorities)

  def priorities(unroll: types.Unroll) -> np.ndarray:
    steps = unroll.steps._replace(observation=())
    return np.asarray(compute(jax.device_put(steps, device)))

  priorities(specs.blank_batch(spec, width).unroll)
  return priorities


@dataclasses.dataclass(eq=False)
class OpenBlock:
  """A block that is being filled."""

  serial: int
  storage: replay.Block
  steps: list[np.ndarray]  # leaves of unroll.steps, [T + 1, W, ...]
  flat: list[np.ndarray]  # the same memory, [(T + 1) * W, ...]
  core: list[np.ndarray]  # leaves of unroll.initial_core, [W, ...]
  missing: int  # columns that are not full yet


class Part(NamedTuple):
  """Part of a batch of environments in one block."""

  block: OpenBlock
  rows: Any  # of the batch; slice or int [n]
  columns: Any  # of the block, for these rows; slice or int [n]


@dataclasses.dataclass(eq=False, slots=True)
class EnvGroup:
  """The environments of a batch, which may come again."""

  env_id: np.ndarray  # int [n], the stream's ids, unique
  index: slice | np.ndarray  # the same, as a slice if they are consecutive
  # Their columns, when the assembler's `_version` was `version`.
  parts: list[Part] = dataclasses.field(default_factory=list)
  version: int = -1


class WaitClock:
  """Measures one thread's waits: `with clock: wait()`."""

  def __init__(self) -> None:
    # Seconds of finished waits, and the start of the current one; one tuple,
    # as other threads read both.
    self._clock: tuple[float, float | None] = (0.0, None)

  @property
  def seconds(self) -> float:
    """Seconds of all waits, with the current one; thread-safe."""
    total, start = self._clock
    return total if start is None else total + time.perf_counter() - start

  def __enter__(self) -> None:
    self._clock = self._clock[0], time.perf_counter()

  def __exit__(self, *error: object) -> None:
    self._clock = self.seconds, None


class UnrollAssembler:
  """Turns steps `[B]`, in any order of environments, into blocks of unrolls.

  Columns are numbered from the first block on: serial number * W + column.
  """

  def __init__(
    self,
    writer: BlockWriter,
    global_env_id: np.ndarray,  # int [N], of the training environments
    num_transitions: int,  # T; an unroll has T + 1 steps
    overlap: int,  # steps that consecutive unrolls of an environment share
    block_width: int,  # W columns of a block
    priorities: Priorities | None = None,  # None: all are alike
    # Transitions of an unroll before those that train. An unroll whose trained
    # transitions all lead to FIRST is dropped; None: never.
    burn_in: int | None = None,
  ):
    """Starts without unrolls; raises ValueError if `overlap` is not in 1..T."""
    if not 1 <= overlap <= num_transitions:
      raise ValueError(
        f'Unrolls of {num_transitions} + 1 steps cannot overlap by {overlap}; '
        'raise --config.unroll_length.'
      )
    self.num_envs = num_envs = len(global_env_id)
    self._writer = writer
    self._clock = WaitClock()
    self._priorities = priorities
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._length = num_transitions
    self._overlap = overlap
    self._stride = num_transitions + 1 - overlap  # new steps of an unroll
    self._width = block_width
    self._burn_in = burn_in
    self._blocks: dict[int, OpenBlock] = {}  # by serial number
    self._next_serial = 0
    self._free = np.empty(0, np.int64)  # columns
    self._column = np.empty(num_envs, np.int64)  # of each environment
    # Of its next step; -1 if it has no column.
    self._row = np.full(num_envs, -1, np.int32)
    self._num_idle = num_envs
    self._version = 0  # counts changes of `_column`
    # Core states before the first steps of unrolls that are not full yet:
    # leaves [N, depth, ...], made when the first states arrive. `depth` is the
    # most unrolls of an environment that are under way at a time.
    self._cores: list[np.ndarray] = []
    self._depth = num_transitions // self._stride + 1
    # Place of each environment's oldest unroll in them.
    self._turn = np.zeros(num_envs, np.int64)
    self._ramp = np.arange(block_width)

  @property
  def waited(self) -> float:
    """Seconds that the store took for inserts (back pressure); thread-safe."""
    return self._clock.seconds

  def record(
    self, group: EnvGroup, leaves: list[Any], take_core: TakeCore
  ) -> None:
    """Writes a step of n > 0 environments and hands over full blocks.

    `leaves` are those of `types.Steps`: arrays `[n, ...]`, or scalars for all.
    Waits while the writer does.
    """
    env_id, index = group.env_id, group.index
    if self._num_idle and (idle := self._row[index] < 0).any():
      self._start(env_id[idle], first_row=0)
    if group.version != self._version:
      group.parts = list(self._parts(self._column[index]))
      group.version = self._version
    rows = self._row[index]
    row, after = int(rows[0]), rows + 1
    # Comparing bytes is much cheaper than comparing arrays.
    in_step = rows.tobytes() == rows[:1].tobytes() * len(rows)
    self._write(group.parts, row if in_step else rows, leaves)
    if not in_step or row % self._stride == 0:
      starting = np.flatnonzero(rows % self._stride == 0)
      if len(starting):
        ahead = rows[starting] // self._stride
        self._keep_cores(env_id[starting], ahead, take_core(starting))
    self._row[index] = after
    if not in_step or row == self._length:
      done = env_id[after > self._length]
      if len(done):
        self._complete(done)

  def ends(self, group: EnvGroup) -> bool:
    """Whether the next step of n > 0 environments ends an unroll of one."""
    return bool(np.any(self._row[group.index] == self._length))

  def amend(self, group: EnvGroup, leaves: list[Any]) -> None:
    """Replaces the step that `record` has just written; see there.

    A step that ended an unroll changes only in the unroll that it begins.
    """
    rows = self._row[group.index] - 1
    self._write(list(self._parts(self._column[group.index])), rows, leaves)

  def reset(self, env_id: np.ndarray) -> None:
    """Drops unfinished unrolls of disconnected environments, int `[n]`."""
    env_id = env_id[self._row[env_id] >= 0]
    self._free = np.concatenate([self._column[env_id], self._free])
    self._row[env_id] = -1
    self._num_idle += len(env_id)

  def _write(
    self, parts: list[Part], row: int | np.ndarray, leaves: list[Any]
  ) -> None:
    """Writes a batch; `row` is an int if all are at the same step."""
    several = len(parts) > 1
    for block, rows, columns in parts:
      if isinstance(row, np.ndarray):
        target: Any = row[rows] * self._width + self._ramp[columns]
      elif isinstance(columns, slice):
        start = row * self._width
        target = slice(start + columns.start, start + columns.stop)
      else:
        target = row * self._width + columns
      for array, leaf in zip(block.flat, leaves, strict=True):
        if several and isinstance(leaf, np.ndarray):
          leaf = leaf[rows]
        array[target] = leaf

  def _keep_cores(
    self, env_id: np.ndarray, ahead: np.ndarray, core: list[np.ndarray]
  ) -> None:
    """Stores states, leaves `[n, ...]`, of unrolls `ahead` of the oldest."""
    if not self._cores:
      shape = (self.num_envs, self._depth)
      self._cores = [np.zeros((*shape, *x.shape[1:]), x.dtype) for x in core]
    turn = (self._turn[env_id] + ahead) % self._depth
    for states, x in zip(self._cores, core, strict=True):
      states[env_id, turn] = x

  def _parts(self, columns: np.ndarray) -> Iterator[Part]:
    """Yields the parts of a batch whose columns are numbers `[n]`, n > 0."""
    width, index = self._width, envs.as_slice(columns)
    if isinstance(index, np.ndarray):
      serials, places = np.divmod(columns, width)
      for serial in sorted({*serials.tolist()}):
        rows = np.flatnonzero(serials == serial)
        yield Part(self._blocks[serial], rows, places[rows])
      return
    start = index.start
    while start < index.stop:
      serial, place = divmod(start, width)
      stop = min(index.stop, (serial + 1) * width)
      yield Part(
        self._blocks[serial],
        slice(start - index.start, stop - index.start),
        slice(place, place + stop - start),
      )
      start = stop

  def _start(self, env_id: np.ndarray, first_row: int) -> None:
    """Assigns environments, int `[n]`, columns; their next step is a row."""
    while len(self._free) < len(env_id):
      self._open()
    numbers, self._free = np.split(self._free, [len(env_id)])
    self._column[env_id] = numbers
    self._num_idle -= int(np.count_nonzero(self._row[env_id] < 0))
    self._row[env_id] = first_row
    self._version += 1
    global_env_id = self._global_env_id[env_id]
    for block, rows, columns in self._parts(numbers):
      block.storage.unroll.env_id[columns] = global_env_id[rows]

  def _open(self) -> None:
    storage = self._writer.allocate()
    steps = jax.tree.leaves(storage.unroll.steps)
    serial = self._next_serial
    self._next_serial += 1
    self._blocks[serial] = OpenBlock(
      serial=serial,
      storage=storage,
      steps=steps,
      flat=[x.reshape(-1, *x.shape[2:]) for x in steps],
      core=jax.tree.leaves(storage.unroll.initial_core),
      missing=self._width,
    )
    numbers = np.arange(serial * self._width, (serial + 1) * self._width)
    self._free = np.concatenate([self._free, numbers])

  def _complete(self, env_id: np.ndarray) -> None:
    """Ends unrolls, begins the next ones and hands over full blocks."""
    old = self._column[env_id]
    self._start(env_id, self._overlap)
    new = self._column[env_id]
    turn = self._turn[env_id]
    core = [states[env_id, turn] for states in self._cores]
    self._turn[env_id] = (turn + 1) % self._depth
    full = []
    for block, rows, columns in self._parts(old):
      for array, x in zip(block.core, core, strict=True):
        array[columns] = x[rows]
      self._copy_overlap(block, self._ramp[columns], new[rows])
      is_empty = self._is_empty(block, self._ramp[columns])
      self._free = np.concatenate([old[rows][is_empty], self._free])
      block.missing -= int(np.count_nonzero(~is_empty))
      if not block.missing:
        full.append(block)
    for block in full:
      del self._blocks[block.serial]
    for block in full:
      priorities = None
      if self._priorities is not None:
        priorities = self._priorities(block.storage.unroll)
      with self._clock:
        self._writer.insert(block.storage, priorities)

  def _is_empty(self, block: OpenBlock, columns: np.ndarray) -> np.ndarray:
    """Returns which of a block's columns `[n]` train nothing, bool `[n]`."""
    if self._burn_in is None:
      return np.zeros(len(columns), bool)
    trained = slice(self._burn_in + 1, self._burn_in + 1 + self._stride)
    step_type = block.storage.unroll.steps.step_type[trained, columns]
    return (step_type == types.StepType.FIRST).all(axis=0)

  def _copy_overlap(
    self, block: OpenBlock, columns: np.ndarray, numbers: np.ndarray
  ) -> None:
    """Copies last steps of a block's columns `[n]` to new columns `[n]`."""
    for other, rows, target in self._parts(numbers):
      source = envs.as_slice(columns[rows])
      for x, y in zip(block.steps, other.steps, strict=True):
        y[: self._overlap, target] = x[-self._overlap :, source]
