"""One inference stream: receive, act, answer, record.

The worker owns a stream of environments, the core-state table of those
environments on one inference core, and the assembler of their unrolls. The
system runs `run` in a thread of its own, or calls `step` itself in lock step
with the learner (deterministic runs).
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import batch_index
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import packing

# Publishes (version, parameters on the worker's device).
ParameterSource = Callable[[], tuple[int, base.Params]]

# Comparing with the enumeration's own value takes four times as long.
_FIRST = int(types.StepType.FIRST)
# Layouts of batches to remember; see `envs.batch_index`.
_MOST_LAYOUTS = 64


class StepSink(Protocol):
  """Takes the steps of training environments, batch by batch.

  `assembler.UnrollAssembler` is training's; `recording` has another.
  """

  def begin(self, env_id: np.ndarray) -> Any:
    """Finds where a batch goes, by its ids, int `[n]`.

    Returns:
      Something whose `core_rows`, int `[m]`, are the rows of the batch of
      which `finish` wants the core state before the step.
    """

  def write(self, placement: Any, leaves: list[Any]) -> None:
    """Takes the leaves of the batch's `types.Steps`."""

  def finish(self, placement: Any, core: list[np.ndarray]) -> float:
    """Takes core states, leaves `[m, ...]`; returns seconds it was held up."""


@dataclasses.dataclass
class WorkerCounters:
  """What a worker has done; written by its thread, read by any.

  Attributes:
    env_steps: transitions of training environments (no reset pseudo-steps).
    eval_steps: transitions of evaluation environments.
    batches: inference calls.
    environment_wait: seconds in which inference waited for environments.
    act: seconds from a batch's arrival to its actions' departure.
    idle_env_seconds: environments x seconds that they waited for actions.
    store_wait: seconds in which the store took no unroll (back pressure).
  """

  env_steps: int = 0
  eval_steps: int = 0
  batches: int = 0
  environment_wait: float = 0.0
  act: float = 0.0
  idle_env_seconds: float = 0.0
  store_wait: float = 0.0


class _Layout(NamedTuple):
  """What is the same in all batches of the same environments.

  Attributes:
    place: indexes arrays of the stream's environments.
    header: int32 `[size, H]`, with slots and ids filled in; `size` is the
      compiled batch size.
    columns: views of the header's first `n` rows.
    rows: training rows of the batch: None for all of them, else a slice where
      they lead the batch, or an array.
    train_env_id: int32 `[m]`, the stream's ids in these rows.
    evaluates: bool `[n]`, the other rows; None where there are none.
  """

  place: slice | np.ndarray
  header: np.ndarray
  columns: packing.Header
  rows: slice | np.ndarray | None
  train_env_id: np.ndarray
  evaluates: np.ndarray | None


class InferenceWorker:
  """Acts for one stream of environments and assembles their unrolls."""

  def __init__(
    self,
    stream: envs.EnvStream,
    device_step: device_step_lib.DeviceStep,
    assembler: StepSink | None,
    parameters: ParameterSource,
    global_env_id: np.ndarray,
    num_train_envs: int,
    output_spec: types.Nest,
    drop: Callable[[np.ndarray], None] | None = None,
  ):
    """Makes a worker.

    Args:
      stream: the environments; ids from `num_train_envs` on are for
        evaluation and feed no unrolls.
      device_step: table and act step with one slot for each environment.
      assembler: of the training environments' unrolls; None where no
        environment trains.
      parameters: gives the newest parameters; never blocks.
      global_env_id: int `[N]`, run-wide ids of the stream's environments.
      num_train_envs: how many of them train.
      output_spec: `ArraySpec`s of the agent's output, see `DeviceStep`.
      drop: forgets the half-built unrolls of training environments that went
        away, by the stream's ids, int32 `[m]`; None where none ever do.
    """
    self.counters = WorkerCounters()
    self._stream = stream
    self._device_step = device_step
    self._assembler = assembler
    self._parameters = parameters
    self._drop = drop
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._num_train = num_train_envs
    self._unpack = packing.Unpacker(output_spec)
    numbers = range(self._unpack.num_leaves)
    self._action_leaf: int = self._unpack.nest(numbers).action
    self._buckets = device_step_lib.batch_buckets(
      stream.min_batch_size, stream.batch_size
    )
    self._index = batch_index.BatchIndex()
    self._layouts: dict[bytes, _Layout] = {}
    action = stream.spec.action
    self._last_action = np.zeros(
      (len(global_env_id), *action.shape), action.dtype
    )

  @property
  def stream(self) -> envs.EnvStream:
    """The environments it acts for."""
    return self._stream

  @property
  def num_train_envs(self) -> int:
    """How many of them train; their ids come first."""
    return self._num_train

  @property
  def device_step(self) -> device_step_lib.DeviceStep:
    """Its table and act step; for checkpoints of the PRNG key."""
    return self._device_step

  def compile(self) -> None:
    """Compiles every batch size ahead; call before the first `step`."""
    _, params = self._parameters()
    self._device_step.compile(params, self._buckets)

  def run(self, should_stop: Callable[[], bool]) -> None:
    """Steps until told to stop; the stream or store may end it by raising."""
    while not should_stop():
      self.step()

  def step(self) -> None:
    """Receives one batch, answers it and records it."""
    counters = self.counters
    start = time.perf_counter()
    output = self._stream.recv()
    received = time.perf_counter()
    dropped = self._stream.take_dropped()
    if len(dropped) and self._drop is not None:
      self._drop(dropped[dropped < self._num_train])
    env_id = output.env_id
    n = len(env_id)
    layout = self._layout(env_id)
    first = output.step_type == _FIRST
    num_first = int(np.count_nonzero(first))
    previous_action = self._last_action[layout.place].copy()
    if num_first:
      previous_action[first] = 0
    version, params = self._parameters()
    columns = layout.columns
    columns.first[:] = first
    columns.reward[:] = output.reward
    columns.previous_action[:] = previous_action
    observation = output.observation
    size = len(layout.header)
    if n < size:
      observation = jax.tree.map(lambda x: _pad(x, size), observation)
    packed, before = self._device_step(params, observation, layout.header)
    outputs = self._unpack.leaves(np.asarray(packed)[:n])
    action = outputs[self._action_leaf]
    self._stream.send(action, env_id)
    sent = time.perf_counter()
    self._last_action[layout.place] = action
    if len(layout.train_env_id):
      # The leaves of `types.Steps`, in their order.
      leaves = [
        *_leaves(output.observation),
        output.reward,
        output.discount,
        output.step_type,
        previous_action,
        *outputs,
        version,
      ]
      counters.store_wait += self._record(layout, leaves, before)
    moved = n - num_first
    if layout.evaluates is not None:
      eval_moved = int(np.count_nonzero(layout.evaluates & ~first))
      counters.eval_steps += eval_moved
      moved -= eval_moved
    counters.env_steps += moved
    counters.batches += 1
    counters.environment_wait += received - start
    counters.act += sent - received
    counters.idle_env_seconds += n * (sent - received)

  def _layout(self, env_id: np.ndarray) -> _Layout:
    """Returns a batch's layout, remembered or new."""
    key = env_id.tobytes()
    layout = self._layouts.get(key)
    if layout is None:
      layout = self._make_layout(env_id.copy())
      if len(self._layouts) < _MOST_LAYOUTS:
        self._layouts[key] = layout
    return layout

  def _make_layout(self, env_id: np.ndarray) -> _Layout:
    n = len(env_id)
    size = next(s for s in self._buckets if s >= n)
    header = self._device_step.make_header(size)
    columns = packing.header_views(header[:n], self._stream.spec.action)
    columns.slot[:] = env_id
    columns.env_id[:] = self._global_env_id[env_id]
    evaluates = env_id >= self._num_train
    count = n - int(np.count_nonzero(evaluates))
    rows: slice | np.ndarray | None = None
    if count < n:
      rows = np.flatnonzero(~evaluates)
      if not evaluates[:count].any():
        rows = slice(0, count)
    return _Layout(
      place=self._index(env_id),
      header=header,
      columns=columns,
      rows=rows,
      train_env_id=env_id if rows is None else env_id[rows],
      evaluates=None if rows is None else evaluates,
    )

  def _record(
    self, layout: _Layout, leaves: list[Any], before: base.Core
  ) -> float:
    """Writes a batch's training rows; returns seconds the store blocked."""
    rows = layout.rows
    if rows is not None:
      leaves = [x[rows] if isinstance(x, np.ndarray) else x for x in leaves]
    assembler = self._assembler
    assert assembler is not None, 'environments that train need an assembler'
    placement = assembler.begin(layout.train_env_id)
    assembler.write(placement, leaves)
    core: list[np.ndarray] = []
    if self._device_step.has_core and len(placement.core_rows):
      core_rows = placement.core_rows
      if isinstance(rows, np.ndarray):
        core_rows = rows[core_rows]
      core = jax.tree.leaves(self._device_step.take_core(before, core_rows))
    return assembler.finish(placement, core)


def _leaves(nest: types.Nest) -> list[np.ndarray]:
  # Most observations are one array.
  return [nest] if isinstance(nest, np.ndarray) else jax.tree.leaves(nest)


def _pad(x: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros((size, *x.shape[1:]), x.dtype)
  padded[: len(x)] = x
  return padded
