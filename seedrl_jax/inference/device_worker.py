"""Central inference for environments in JAX: whole unrolls in one call.

Nothing but the ends of episodes comes to the host, unless the store is there.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import action_masks
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler, lag_gate, unroll_program
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.replay import device


class DeviceWorker:
  """Acts in a share of a run's environments; see `InferenceWorker`."""

  def __init__(
    self,
    program: unroll_program.UnrollProgram,
    core: jax.Device,  # to act on
    seed: int,  # of the environments
    key: jax.Array,  # for actions
    parameters: worker_lib.ParameterSource,
    writer: assembler.BlockWriter,  # takes the program's blocks
    # Takes its steps, if the program cuts no blocks.
    sink: assembler.UnrollAssembler | None = None,
    # Unrolls begin only if it lets them; then the `writer`, too.
    gate: lag_gate.LagGate | None = None,
  ):
    """Makes a worker; environments begin when it compiles."""
    self.counters = worker_lib.WorkerCounters()
    self.num_train_envs = program.num_train
    self._program = program
    self._parameters = parameters
    self._writer = writer
    self._sink = sink
    self._gate = gate
    self._clock = assembler.WaitClock()
    self._episodes = envs.EpisodeLog()
    self._closed = threading.Event()
    self._key = jax.device_put(key, core)
    self._env_key = jax.device_put(jax.random.PRNGKey(seed), core)
    self._carry: Any = None
    self._call: Any = jax.jit(program, donate_argnums=3)
    self.take_episodes = self._episodes.take
    # Lets the current call be the last; the environments are arrays.
    self.interrupt = self.close = self._closed.set
    ids = np.arange(program.num_train, dtype=np.int32)
    self._group = assembler.EnvGroup(ids, envs.as_slice(ids))

  @property
  def key(self) -> np.ndarray:
    """The PRNG key of the next call, uint32 `[2]`; part of checkpoints."""
    return np.asarray(jax.device_get(self._key))

  @property
  def store_wait(self) -> float:
    """Seconds of waiting for the learner: for room in the store, or a gate."""
    waited = 0.0 if self._sink is None else self._sink.waited
    return waited + self._clock.seconds

  def compile(self) -> None:
    """Resets the environments and compiles the program."""
    version, params = self._parameters()
    self._carry = jax.jit(self._program.init)(self._env_key)
    arguments = params, np.int32(version), self._key, self._carry
    self._call = self._call.lower(*arguments).compile()

  def run(self, should_stop: Callable[[], bool]) -> None:
    """Acts until `should_stop()`, or until the store or this is closed."""
    while not should_stop():
      self.step()

  def step(self) -> None:
    """Acts for one unroll of each environment, and hands them over.

    Raises:
      StreamClosed: after `interrupt`.
      StoreClosed: if the store or the gate is closed, also while waiting.
      EnvironmentFailed: if a step had no legal choice.
    """
    if self._closed.is_set():
      raise envs.StreamClosed('The environments are closed.')
    width, blocks = self._program.block_width, []
    with self._clock:
      if width is not None:
        count = self.num_train_envs // width
        blocks = [self._writer.allocate() for _ in range(count)]
      if self._gate is not None:
        self._gate.wait()
    start = time.perf_counter()
    version, params = self._parameters()
    self._carry, acted = self._call(
      params, np.int32(version), self._key, self._carry
    )
    self._count(jax.device_get(acted.episodes))
    self._key = acted.key
    self.counters.act += time.perf_counter() - start
    if self._sink is not None:
      self._record(self._sink, acted.unrolls)
      return
    for block, batch in zip(blocks, acted.unrolls, strict=True):
      _fill(block, batch, version)
      with self._clock:
        self._writer.insert(block)

  def _record(
    self, sink: assembler.UnrollAssembler, unrolls: tuple[types.Steps, Any]
  ) -> None:
    """Passes on steps one by one; unrolls begin only with the first."""
    steps, core = jax.device_get(unrolls)
    leaves, cores = jax.tree.leaves(steps), jax.tree.leaves(core)
    for i in range(len(leaves[0])):
      sink.record(
        self._group,
        [x[i] for x in leaves],
        lambda starts: [x[starts] for x in cores],
      )

  def _count(self, episodes: unroll_program.Episodes) -> None:
    if np.any(episodes.lacks_choice):
      raise envs.EnvironmentFailed(
        f'Environment {np.argmax(episodes.lacks_choice)} of '
        f'{self._program.env.spec.name} {action_masks.NO_CHOICE}'
      )
    num_train, counters = self.num_train_envs, self.counters
    counters.env_steps += int(episodes.env_steps[:num_train].sum())
    counters.eval_steps += int(episodes.env_steps[num_train:].sum())
    counters.batches += 1
    _, rows = places = np.nonzero(episodes.ended)
    if len(rows):
      length = episodes.length[places]
      task = np.zeros(len(rows), np.int32)
      if self._program.env.spec.tasks:
        task = episodes.task[places]
      self._episodes.append(
        envs.EndedEpisodes(
          rows,
          episodes.episode_return[places],
          length,
          length * self._program.env.spec.action_repeat,
          episodes.terminated[places],
          task,
        )
      )


def _fill(block: Any, batch: types.Batch, version: int) -> None:
  """Puts a batch into a block, by one copy if that is on the host."""
  if isinstance(block, device.DeviceBlock):
    block.batch, block.version = batch, version
    return
  leaves = jax.device_get(jax.tree.leaves(batch.unroll))
  for target, x in zip(block.leaves, leaves, strict=True):
    target[...] = x[0]
