"""One inference stream: receive, act, answer, record.

The worker owns a stream of environments, the core-state table of those
environments on one inference core, and the assembler of their unrolls. The
system runs `run` in a thread of its own, or calls `step` itself in lock step
with the learner (deterministic runs).
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import packing

# Publishes (version, parameters on the worker's device).
ParameterSource = Callable[[], tuple[int, base.Params]]

_FIRST = types.StepType.FIRST


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


class InferenceWorker:
  """Acts for one stream of environments and assembles their unrolls."""

  def __init__(
    self,
    stream: envs.EnvStream,
    device_step: device_step_lib.DeviceStep,
    assembler: assembler_lib.UnrollAssembler,
    parameters: ParameterSource,
    global_env_id: np.ndarray,
    num_train_envs: int,
    output_spec: types.Nest,
  ):
    """Makes a worker.

    Args:
      stream: the environments; ids from `num_train_envs` on are for
        evaluation and feed no unrolls.
      device_step: table and act step with one slot for each environment.
      assembler: of the training environments' unrolls.
      parameters: gives the newest parameters; never blocks.
      global_env_id: int `[N]`, run-wide ids of the stream's environments.
      num_train_envs: how many of them train.
      output_spec: `ArraySpec`s of the agent's output, see `DeviceStep`.
    """
    self.counters = WorkerCounters()
    self._stream = stream
    self._device_step = device_step
    self._assembler = assembler
    self._parameters = parameters
    self._global_env_id = np.asarray(global_env_id, np.int32)
    self._num_train = num_train_envs
    self._all_train = num_train_envs == len(global_env_id)
    self._unpack = packing.Unpacker(output_spec)
    self._buckets = device_step_lib.batch_buckets(
      stream.min_batch_size, stream.batch_size
    )
    self._headers = {
      size: np.zeros((size, packing.HEADER_WIDTH), np.int32)
      for size in self._buckets
    }
    self._last_action = np.zeros(len(global_env_id), np.int32)

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
    self._device_step.compile(
      params, self._stream.spec.observation, self._buckets
    )

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
    env_id = output.env_id
    n = len(env_id)
    first = output.step_type == _FIRST
    previous_action = self._last_action[env_id]
    previous_action[first] = 0
    version, params = self._parameters()
    packed, before = self._act(params, output, first, previous_action)
    agent_output = self._unpack(np.asarray(packed)[:n])
    self._stream.send(agent_output.action, env_id)
    sent = time.perf_counter()
    self._last_action[env_id] = agent_output.action
    steps = types.Steps(
      observation=output.observation,
      reward=output.reward,
      discount=output.discount,
      step_type=output.step_type,
      previous_action=previous_action,
      agent_output=agent_output,
      parameter_version=version,
    )
    blocked = self._record(env_id, steps, before)
    moved = n - int(np.count_nonzero(first))
    if not self._all_train:
      is_eval = env_id >= self._num_train
      eval_moved = int(np.count_nonzero(is_eval & ~first))
      counters.eval_steps += eval_moved
      moved -= eval_moved
    counters.env_steps += moved
    counters.batches += 1
    counters.environment_wait += received - start
    counters.act += sent - received
    counters.idle_env_seconds += n * (sent - received)
    counters.store_wait += blocked

  def _act(
    self,
    params: base.Params,
    output: types.EnvOutput,
    first: np.ndarray,
    previous_action: np.ndarray,
  ) -> tuple[jax.Array, base.Core]:
    """Dispatches the device step, padded to the next compiled batch size."""
    n = len(output.env_id)
    size = next(s for s in self._buckets if s >= n)
    header = self._headers[size]
    packing.write_header(
      header[:n],
      output.env_id,
      self._global_env_id[output.env_id],
      first,
      previous_action,
      output.reward,
    )
    observation = output.observation
    if n < size:
      header[n:] = 0
      header[n:, 0] = self._device_step.padding_slot
      observation = jax.tree.map(lambda x: _pad(x, size), observation)
    return self._device_step(params, observation, header)

  def _record(
    self, env_id: np.ndarray, steps: types.Steps, before: base.Core
  ) -> float:
    """Writes a batch's training rows; returns seconds the store blocked."""
    rows = self._training_rows(env_id)
    if rows is None:
      return 0.0
    leaves: list[Any] = jax.tree.leaves(steps)
    if isinstance(rows, np.ndarray) or rows.stop is not None:
      env_id = env_id[rows]
      leaves = [x[rows] if isinstance(x, np.ndarray) else x for x in leaves]
    placement = self._assembler.begin(env_id)
    self._assembler.write(placement, leaves)
    core: list[np.ndarray] = []
    if self._device_step.has_core and len(placement.core_rows):
      core_rows = placement.core_rows
      if isinstance(rows, np.ndarray):
        core_rows = rows[core_rows]
      core = jax.tree.leaves(self._device_step.take_core(before, core_rows))
    return self._assembler.finish(placement, core)

  def _training_rows(self, env_id: np.ndarray) -> Any:
    """Returns which rows train: a slice where they lead the batch."""
    if self._all_train:
      return slice(None)
    train = env_id < self._num_train
    count = int(np.count_nonzero(train))
    if count == 0:
      return None
    if count == len(env_id):
      return slice(None)
    if train[:count].all():
      return slice(0, count)
    return np.flatnonzero(train)


def _pad(x: np.ndarray, size: int) -> np.ndarray:
  padded = np.zeros((size, *x.shape[1:]), x.dtype)
  padded[: len(x)] = x
  return padded
