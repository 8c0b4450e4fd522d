"""Central inference for one stream: receive, act, send, record."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import packing

# Returns (version, parameters on the worker's device).
ParameterSource = Callable[[], tuple[int, base.Params]]

# Comparing with the enum itself takes four times as long.
_FIRST = int(types.StepType.FIRST)
# Layouts to cache before starting anew: a pool with many threads never
# repeats a batch, and must not shut out those that come again.
_MOST_LAYOUTS = 64


class StepSink(Protocol):
  """Receives training steps; see `assembler.UnrollAssembler`."""

  num_envs: int

  @property
  def waited(self) -> float: ...

  def begin(self, group: assembler_lib.BatchedEnvs) -> Any: ...

  def write(self, placement: Any, leaves: list[Any]) -> None: ...

  def finish(self, placement: Any, core: list[np.ndarray]) -> None: ...

  def reset(self, env_id: np.ndarray) -> None: ...


@dataclasses.dataclass
class WorkerCounters:
  """Counters that the worker's thread writes and any thread may read.

  Attributes:
    env_steps: transitions of training environments (no reset pseudo-steps).
    eval_steps: transitions of evaluation environments.
    batches: inference calls.
    environment_wait: seconds that inference waited for environments.
    act: seconds from a batch's arrival to its actions' departure.
    idle_env_seconds: environments x seconds that they waited for actions.
  """

  env_steps: int = 0
  eval_steps: int = 0
  batches: int = 0
  environment_wait: float = 0.0
  act: float = 0.0
  idle_env_seconds: float = 0.0


class BatchLayout(NamedTuple):
  """What all batches of the same environments have in common.

  Attributes:
    place: index of the environments in arrays of the stream.
    header: int32 `[size, H]` with slots and ids; `size` is a compiled one.
    columns: views of the header's first `n` rows.
    rows: training rows: None if all, a slice if first, else an array.
    group: the environments of these rows; may be empty.
    evaluates: bool `[n]`, the other rows; None if there are none.
  """

  place: slice | np.ndarray
  header: np.ndarray
  columns: packing.Header
  rows: slice | np.ndarray | None
  group: assembler_lib.BatchedEnvs
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
    output_spec: types.Nest,
  ):
    """Makes a worker.

    Args:
      stream: the environments, those for evaluation last.
      device_step: has one slot for each environment.
      assembler: of the training environments; None if there are none.
      parameters: returns the newest parameters; must not block.
      global_env_id: int `[N]`, run-wide ids of the stream's environments.
    """
    self.counters = WorkerCounters()
    self._stream = stream
    self._device_step = device_step
    self._assembler = assembler
    self._parameters = parameters
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._unpack = packing.Unpacker(output_spec)
    numbers = range(self._unpack.num_leaves)
    self._action_leaf: int = self._unpack.nest(numbers).action
    self._buckets = device_step_lib.batch_buckets(
      stream.min_batch_size, stream.batch_size
    )
    self._layouts: dict[bytes, BatchLayout] = {}
    action = stream.spec.action
    self._last_action = np.zeros(
      (len(global_env_id), *action.shape), action.dtype
    )

  @property
  def stream(self) -> envs.EnvStream:
    """The environments that it acts for."""
    return self._stream

  @property
  def num_train_envs(self) -> int:
    """Number of training environments; their ids come first."""
    return 0 if self._assembler is None else self._assembler.num_envs

  @property
  def store_wait(self) -> float:
    """Seconds that the store blocked inserts (back pressure)."""
    return 0.0 if self._assembler is None else self._assembler.waited

  @property
  def device_step(self) -> device_step_lib.DeviceStep:
    """The device step, whose PRNG key checkpoints save."""
    return self._device_step

  def compile(self) -> None:
    """Compiles every batch size; call before the first `step`."""
    _, params = self._parameters()
    self._device_step.compile(params, self._buckets)

  def run(self, should_stop: Callable[[], bool]) -> None:
    """Steps until `should_stop()`, or until the stream or store raises."""
    while not should_stop():
      self.step()

  def step(self) -> None:
    """Receives one batch, sends its actions and records it."""
    start = time.perf_counter()
    output = self._stream.recv()
    received = time.perf_counter()
    if len(dropped := self._stream.take_dropped()):
      self._drop(dropped)
    layout = self._layout(output.env_id)
    first = output.step_type == _FIRST
    previous_action = self._last_action[layout.place].copy()
    num_first = int(np.count_nonzero(first))
    if num_first:
      previous_action[first] = 0
    columns = layout.columns
    columns.first[:] = first
    columns.reward[:] = output.reward
    columns.previous_action[:] = previous_action
    version, outputs, before = self._act(layout, output)
    action = outputs[self._action_leaf]
    self._stream.send(action, output.env_id)
    sent = time.perf_counter()
    self._last_action[layout.place] = action
    if len(layout.group.env_id):
      # The leaves of `types.Steps`, in order.
      leaves = [
        *_leaves(output.observation),
        output.reward,
        output.discount,
        output.step_type,
        previous_action,
        *outputs,
        version,
      ]
      self._record(layout, leaves, before)
    self._count(layout, first, num_first)
    counters = self.counters
    counters.environment_wait += received - start
    counters.act += sent - received
    counters.idle_env_seconds += len(first) * (sent - received)

  def _drop(self, env_id: np.ndarray) -> None:
    """Drops the unrolls of training environments that disconnected."""
    if self._assembler is not None:
      self._assembler.reset(env_id[env_id < self._assembler.num_envs])

  def _act(
    self, layout: BatchLayout, output: types.EnvOutput
  ) -> tuple[int, list[np.ndarray], base.Core]:
    """Returns version, output leaves `[n, ...]` and core states before."""
    version, params = self._parameters()
    observation = output.observation
    n, size = len(output.env_id), len(layout.header)
    if n < size:
      observation = jax.tree.map(lambda x: _pad(x, size), observation)
    packed, before = self._device_step(params, observation, layout.header)
    return version, self._unpack.leaves(np.asarray(packed)[:n]), before

  def _count(
    self, layout: BatchLayout, first: np.ndarray, num_first: int
  ) -> None:
    counters = self.counters
    moved = len(first) - num_first
    if layout.evaluates is not None:
      eval_moved = int(np.count_nonzero(layout.evaluates & ~first))
      counters.eval_steps += eval_moved
      moved -= eval_moved
    counters.env_steps += moved
    counters.batches += 1

  def _layout(self, env_id: np.ndarray) -> BatchLayout:
    """Returns a batch's layout, cached if possible."""
    key = env_id.tobytes()
    layout = self._layouts.get(key)
    if layout is None:
      if len(self._layouts) == _MOST_LAYOUTS:
        self._layouts.clear()
      layout = self._layouts[key] = self._make_layout(env_id.copy())
    return layout

  def _make_layout(self, env_id: np.ndarray) -> BatchLayout:
    n = len(env_id)
    size = next(s for s in self._buckets if s >= n)
    header = self._device_step.make_header(size)
    columns = packing.header_views(header[:n], self._stream.spec.action)
    columns.slot[:] = env_id
    columns.env_id[:] = self._global_env_id[env_id]
    evaluates = env_id >= self.num_train_envs
    count = n - int(np.count_nonzero(evaluates))
    rows: slice | np.ndarray | None = None
    if count < n:
      rows = np.flatnonzero(~evaluates)
      if not evaluates[:count].any():
        rows = slice(0, count)
    trains = env_id if rows is None else env_id[rows]
    return BatchLayout(
      place=envs.as_slice(env_id),
      header=header,
      columns=columns,
      rows=rows,
      group=assembler_lib.BatchedEnvs(
        trains, envs.as_slice(trains) if count else trains
      ),
      evaluates=None if rows is None else evaluates,
    )

  def _record(
    self, layout: BatchLayout, leaves: list[Any], before: base.Core
  ) -> None:
    """Writes a batch's training rows."""
    rows = layout.rows
    if rows is not None:
      leaves = [x[rows] if isinstance(x, np.ndarray) else x for x in leaves]
    assembler = self._assembler
    assert assembler is not None, 'environments that train need an assembler'
    placement = assembler.begin(layout.group)
    assembler.write(placement, leaves)
    core: list[np.ndarray] = []
    if self._device_step.has_core and len(placement.core_rows):
      core_rows = placement.core_rows
      if isinstance(rows, np.ndarray):
        core_rows = rows[core_rows]
      core = jax.tree.leaves(self._device_step.take_core(before, core_rows))
    assembler.finish(placement, core)


def _leaves(nest: types.Nest) -> list[np.ndarray]:
  # Most observations are one array.
  return [nest] if isinstance(nest, np.ndarray) else jax.tree.leaves(nest)


def _pad(x: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros((size, *x.shape[1:]), x.dtype)
  padded[: len(x)] = x
  return padded
