"""Central inference for one stream: receive, act, send, record."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler, specs
from seedrl_jax.inference import device_step as device_step_lib

# Returns (version, parameters on the worker's device).
ParameterSource = Callable[[], tuple[int, base.Params]]

# Comparing with the enum itself takes four times as long.
_FIRST = int(types.StepType.FIRST)
# Layouts to cache. A pool with many threads never repeats a batch.
_MOST_LAYOUTS = 64


class StepSink(Protocol):
  """Receives training steps; see `assembler.UnrollAssembler`."""

  num_envs: int

  @property
  def waited(self) -> float: ...

  def record(
    self,
    group: assembler.EnvGroup,
    leaves: list[Any],
    take_core: assembler.TakeCore,
  ) -> None: ...

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
    place: of the environments in arrays of the stream.
    header: int32 `[size, H]` with slots and ids; `size` is a compiled one.
    columns: views of the header's first `n` rows.
    trains: int `[m]`, the rows that train; the others evaluate.
    rows: the same, as a slice if it is one.
    group: their environments.
  """

  place: slice | np.ndarray
  header: np.ndarray
  columns: specs.Header
  trains: np.ndarray
  rows: slice | np.ndarray
  group: assembler.EnvGroup


class InferenceWorker:
  """Acts for one stream of environments and records their steps.

  Attributes:
    stream: the environments, those for evaluation last.
    device_step: its PRNG key is part of checkpoints.
    num_train_envs: number of training environments; their ids come first.
  """

  def __init__(
    self,
    stream: envs.EnvStream,
    device_step: device_step_lib.DeviceStep,
    sink: StepSink | None,
    parameters: ParameterSource,
    global_env_id: np.ndarray,
  ):
    """Makes a worker.

    Args:
      device_step: has one slot for each environment.
      sink: of the training environments; None if there are none.
      parameters: returns the newest parameters; must not block.
      global_env_id: int `[N]`, run-wide ids of the stream's environments.
    """
    self.counters = WorkerCounters()
    self.stream = stream
    self.device_step = device_step
    self.num_train_envs = 0 if sink is None else sink.num_envs
    self._sink = sink
    self._parameters = parameters
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._buckets = device_step_lib.batch_buckets(
      stream.min_batch_size, stream.batch_size
    )
    self._action_leaf: int = device_step.output.numbers.action
    self._layout = functools.lru_cache(_MOST_LAYOUTS)(self._make_layout)
    action = stream.spec.action
    self._last_action = np.zeros(
      (len(global_env_id), *action.shape), action.dtype
    )

  @property
  def store_wait(self) -> float:
    """Seconds that the store blocked inserts (back pressure)."""
    return 0.0 if self._sink is None else self._sink.waited

  def compile(self) -> None:
    """Compiles every batch size; call before the first `step`."""
    _, params = self._parameters()
    self.device_step.compile(params, self._buckets)

  def run(self, should_stop: Callable[[], bool]) -> None:
    """Steps until `should_stop()`, or until the stream or store raises."""
    while not should_stop():
      self.step()

  def step(self) -> None:
    """Receives one batch, sends its actions and records it."""
    start = time.perf_counter()
    output = self.stream.recv()
    received = time.perf_counter()
    dropped = self.stream.take_dropped()
    if len(dropped) and self._sink is not None:
      self._sink.reset(dropped[dropped < self._sink.num_envs])
    layout = self._layout(output.env_id.tobytes())
    first = output.step_type == _FIRST
    previous_action = self._last_action[layout.place].copy()
    num_first = int(np.count_nonzero(first))
    if num_first:
      previous_action[first] = 0
    columns = layout.columns
    columns.first[:] = first
    columns.reward[:] = output.reward
    columns.previous_action[:] = previous_action
    version, agent_output, before = self._act(layout, output)
    action = agent_output[self._action_leaf]
    self.stream.send(action, output.env_id)
    sent = time.perf_counter()
    self._last_action[layout.place] = action
    if len(layout.trains):
      # The leaves of `types.Steps`, in order.
      leaves = [
        *_leaves(output.observation),
        output.reward,
        output.discount,
        output.step_type,
        previous_action,
        *agent_output,
        version,
      ]
      self._record(layout, leaves, before)
    self._count(layout, first, num_first)
    counters = self.counters
    counters.environment_wait += received - start
    counters.act += sent - received
    counters.idle_env_seconds += len(first) * (sent - received)

  def _act(
    self, layout: BatchLayout, output: types.EnvOutput
  ) -> tuple[int, list[np.ndarray], base.Core]:
    """Returns version, output leaves `[n, ...]` and core states before."""
    version, params = self._parameters()
    observation = output.observation
    n, size = len(output.env_id), len(layout.header)
    if n < size:
      observation = jax.tree.map(lambda x: _pad(x, size), observation)
    packed, before = self.device_step(params, observation, layout.header)
    views = self.device_step.output.views(np.asarray(packed)[:n])
    return version, views, before

  def _count(
    self, layout: BatchLayout, first: np.ndarray, num_first: int
  ) -> None:
    moved = len(first) - num_first
    trained = moved
    if len(layout.trains) < len(first):
      trained = int(np.count_nonzero(~first[layout.rows]))
    self.counters.env_steps += trained
    self.counters.eval_steps += moved - trained
    self.counters.batches += 1

  def _make_layout(self, env_id_bytes: bytes) -> BatchLayout:
    """Makes the layout of batches of environments, int32 `[n]`."""
    env_id = np.frombuffer(env_id_bytes, np.int32)
    n = len(env_id)
    size = next(s for s in self._buckets if s >= n)
    header = self.device_step.make_header(size)
    columns = specs.Header(*self.device_step.header.views(header[:n]))
    columns.slot[:] = env_id
    columns.env_id[:] = self._global_env_id[env_id]
    trains = np.flatnonzero(env_id < self.num_train_envs)
    ids = env_id[trains]
    return BatchLayout(
      place=envs.as_slice(env_id),
      header=header,
      columns=columns,
      trains=trains,
      rows=envs.as_slice(trains) if len(trains) else trains,
      group=assembler.EnvGroup(ids, envs.as_slice(ids) if len(ids) else ids),
    )

  def _record(
    self, layout: BatchLayout, leaves: list[Any], before: base.Core
  ) -> None:
    """Passes on a batch's training rows."""
    trains, rows = layout.trains, layout.rows
    if len(trains) < len(layout.columns.slot):
      leaves = [x[rows] if isinstance(x, np.ndarray) else x for x in leaves]
    assert self._sink is not None, 'environments that train need a sink'
    self._sink.record(
      layout.group,
      leaves,
      lambda starts: self.device_step.take_core(before, trains[starts]),
    )


def _leaves(nest: types.Nest) -> list[np.ndarray]:
  # Most observations are one array.
  return [nest] if isinstance(nest, np.ndarray) else jax.tree.leaves(nest)


def _pad(x: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros((size, *x.shape[1:]), x.dtype)
  padded[: len(x)] = x
  return padded
