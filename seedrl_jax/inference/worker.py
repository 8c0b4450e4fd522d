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
from seedrl_jax.inference import assembler, lag_gate, specs
from seedrl_jax.inference import device_step as device_step_lib

# Returns the newest (version, parameters on the worker's device) at once.
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

  def ends(self, group: assembler.EnvGroup) -> bool: ...

  def amend(self, group: assembler.EnvGroup, leaves: list[Any]) -> None: ...

  def reset(self, env_id: np.ndarray) -> None: ...


@dataclasses.dataclass
class WorkerCounters:
  """Counters that the worker's thread writes and any thread may read."""

  env_steps: int = 0  # transitions of training environments, without resets
  eval_steps: int = 0  # those of evaluation environments
  batches: int = 0  # inference calls
  environment_wait: float = 0.0  # seconds without environments to act for
  act: float = 0.0  # seconds from a batch's arrival to its actions' departure
  idle_env_seconds: float = 0.0  # environments x seconds without actions


class BatchLayout(NamedTuple):
  """What all batches of the same environments have in common."""

  place: slice | np.ndarray  # of the environments in arrays of the stream
  header: np.ndarray  # int32 [size, H], slots and ids; a compiled size
  columns: specs.Header  # views of the header's first n rows
  trains: np.ndarray  # int [m], the rows that train; the others evaluate
  rows: slice | np.ndarray  # the same, as a slice if it is one
  group: assembler.EnvGroup  # their environments


class _Acted(NamedTuple):
  """A batch and its actions."""

  layout: BatchLayout
  output: types.EnvOutput
  previous_action: np.ndarray
  received: float  # when it arrived
  version: int  # of the parameters that acted
  agent_output: list[np.ndarray]  # leaves [n, ...]
  before: base.Core  # core states before the step

  def leaves(self) -> list[Any]:
    """Returns the leaves of `types.Steps`, in order, of all rows that train."""
    output, rows = self.output, self.layout.rows
    leaves = [
      *_leaves(output.observation),
      output.reward,
      output.discount,
      output.step_type,
      self.previous_action,
      *self.agent_output,
      self.version,
    ]
    if len(self.layout.trains) < len(output.env_id):
      leaves = [x[rows] if isinstance(x, np.ndarray) else x for x in leaves]
    return leaves


class InferenceWorker:
  """Acts for one stream of environments and records their steps."""

  def __init__(
    self,
    stream: envs.EnvStream,  # environments for evaluation have the last ids
    device_step: device_step_lib.DeviceStep,  # with one slot per environment
    sink: StepSink | None,  # of the training environments; None without
    parameters: ParameterSource,
    global_env_id: np.ndarray,  # int [N], run-wide ids of the environments
    # Unrolls of `sink`, which writes to the gate, begin only if it lets them.
    gate: lag_gate.LagGate | None = None,
  ):
    self.counters = WorkerCounters()
    self.stream = stream
    self.take_episodes = stream.take_episodes
    self.interrupt = stream.interrupt
    self.close = stream.close
    self.device_step = device_step
    self.num_train_envs = 0 if sink is None else sink.num_envs
    self._sink = sink
    self._gate = gate
    self._gate_clock = assembler.WaitClock()
    # Sends the actions of a batch that ended unrolls.
    self._send_held: Callable[[], None] | None = None
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
    """Seconds of waiting for the learner: for room in the store, or a gate."""
    waited = 0.0 if self._sink is None else self._sink.waited
    return waited + self._gate_clock.seconds

  @property
  def key(self) -> np.ndarray:
    """The PRNG key of the next step, uint32 `[2]`; part of checkpoints."""
    return self.device_step.key

  def compile(self) -> None:
    """Compiles every batch size; call before the first `step`."""
    _, params = self._parameters()
    restores = self._gate is not None
    self.device_step.compile(params, self._buckets, restores)

  def run(self, should_stop: Callable[[], bool]) -> None:
    """Steps until `should_stop()`, or until the stream or store raises."""
    while not should_stop():
      self.step()

  def step(self) -> None:
    """Receives one batch, sends its actions and records it.

    With a gate, a batch that ends unrolls is recorded first. Its actions belong
    to the next ones; the next call sends them, chosen anew if there are newer
    parameters. The learner may train in between, in this thread, too.
    """
    if self._send_held is not None:
      self._send_held()
      self._send_held = None
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
    acted = _Acted(
      layout, output, previous_action, received, *self._act(layout, output)
    )
    sink, gate = self._sink, self._gate
    if sink is None or not len(layout.trains):
      self._send(acted)
    elif gate is not None and sink.ends(layout.group):
      self._record(sink, acted)
      self._send_held = functools.partial(self._send_after, gate, sink, acted)
    else:
      self._send(acted)
      self._record(sink, acted)
    moved = trained = len(first) - num_first
    if len(layout.trains) < len(first):
      trained = int(np.count_nonzero(~first[layout.rows]))
    self.counters.env_steps += trained
    self.counters.eval_steps += moved - trained
    self.counters.batches += 1
    self.counters.environment_wait += received - start

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

  def _send(self, acted: _Acted) -> None:
    """Sends a batch's actions."""
    env_id = acted.output.env_id
    action = acted.agent_output[self._action_leaf]
    self.stream.send(action, env_id)
    self._last_action[acted.layout.place] = action
    seconds = time.perf_counter() - acted.received
    self.counters.act += seconds
    self.counters.idle_env_seconds += len(env_id) * seconds

  def _send_after(
    self, gate: lag_gate.LagGate, sink: StepSink, acted: _Acted
  ) -> None:
    """Sends the actions of a batch that ended unrolls, once `gate` lets it."""
    with self._gate_clock:
      gate.wait()
    if self._parameters()[0] != acted.version:
      layout = acted.layout
      self.device_step.restore(layout.header, acted.before)
      version, agent_output, _ = self._act(layout, acted.output)
      acted = acted._replace(version=version, agent_output=agent_output)
      sink.amend(layout.group, acted.leaves())
    self._send(acted)

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

  def _record(self, sink: StepSink, acted: _Acted) -> None:
    """Passes on a batch's training rows."""
    layout = acted.layout
    sink.record(
      layout.group,
      acted.leaves(),
      lambda starts: self.device_step.take_core(
        acted.before, layout.trains[starts]
      ),
    )


def _leaves(nest: types.Nest) -> list[np.ndarray]:
  # Most observations are one array.
  return [nest] if isinstance(nest, np.ndarray) else jax.tree.leaves(nest)


def _pad(x: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros((size, *x.shape[1:]), x.dtype)
  padded[: len(x)] = x
  return padded
