"""Central inference for environments in JAX: whole unrolls in one call.

Nothing but the ends of episodes comes to the host, unless the store is there.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import action_masks
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import assembler, lag_gate
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.replay import device


class Carry(NamedTuple):
  """What a call leaves to the next one; leaves `[N, ...]`."""

  env: types.Nest  # the state of the environments
  output: types.EnvOutput  # their last outputs, which wait for actions
  previous_action: jax.Array  # led to them
  core: base.Core  # before them
  episode_return: jax.Array  # of the episodes under way
  episode_length: jax.Array


class Episodes(NamedTuple):
  """The ends of episodes in S steps, `[S, N]`, and the number of steps."""

  ended: types.Array  # bool; what follows counts only where it is True
  episode_return: types.Array
  length: types.Array
  terminated: types.Array
  task: types.Nest  # () in a run of one task
  env_steps: types.Array  # int32 [N], transitions (none lead to FIRST)
  # Bool [N], whether one began without a legal choice; () if there is no action
  # mask, or none is needed.
  lacks_choice: types.Nest


class Acted(NamedTuple):
  """What a call gives, on the device."""

  key: jax.Array  # PRNG key of the next call
  episodes: Episodes  # of all environments
  unrolls: Any  # of the training ones; see `UnrollProgram`


@dataclasses.dataclass(frozen=True, eq=False)
class UnrollProgram:
  """Acts for `num_steps` steps in all environments of a stream.

  With `block_width`, `Acted.unrolls` are blocks of this many unrolls of
  `num_steps` transitions: each a `types.Batch` with a leading axis of 1, as an
  update takes it. The step that ends an unroll is also the next one's first: it
  is acted for each with the same key, but with the parameters of that call.
  Without, they are `types.Steps`, `[num_steps, num_train, ...]`, and the core
  states before them.
  """

  agent: base.Agent
  env: types.DeviceEnv
  env_id: np.ndarray  # int32 [N], run-wide ids; those that train come first
  num_train: int  # number of those that train
  num_steps: int
  block_width: int | None = None

  def init(self, key: jax.Array) -> Carry:
    """Resets the environments."""
    n, action = len(self.env_id), self.env.spec.action
    state, output = self.env.init(key, n)
    return Carry(
      env=state,
      output=output,
      previous_action=jnp.zeros((n, *action.shape), action.dtype),
      core=self.agent.initial_core(n),
      episode_return=jnp.zeros(n, jnp.float32),
      episode_length=jnp.zeros(n, jnp.int32),
    )

  def __call__(
    self, params: base.Params, version: jax.Array, key: jax.Array, carry: Carry
  ) -> tuple[Carry, Acted]:
    """Acts with `params`, whose version is an int32 scalar."""
    core = carry.core

    def step(state: Any, _: None) -> Any:
      key, carry = state
      key, act_key = jax.random.split(key)
      row, after = self._act(params, version, act_key, carry)
      carry, ended = self._move(carry, row.agent_output.action, after)
      return (key, carry), (self._train(row), ended)

    (key, carry), (steps, ended) = jax.lax.scan(
      step, (key, carry), None, self.num_steps
    )
    episodes = ended._replace(
      env_steps=jnp.sum(ended.env_steps, axis=0),
      lacks_choice=jax.tree.map(
        lambda x: jnp.any(x, axis=0), ended.lacks_choice
      ),
    )
    core = self._train(core)
    if self.block_width is None:
      return carry, Acted(key, episodes, (steps, core))
    _, act_key = jax.random.split(key)
    last, _ = self._act(params, version, act_key, carry)
    blocks = [
      self._block(steps, self._train(last), core, start)
      for start in range(0, self.num_train, self.block_width)
    ]
    return carry, Acted(key, episodes, blocks)

  def _act(
    self, params: base.Params, version: jax.Array, key: jax.Array, carry: Carry
  ) -> tuple[types.Steps, base.Core]:
    """Returns a step `[N]`, with what the agent chose, and the next core."""
    output = carry.output
    first = output.step_type == types.StepType.FIRST
    previous = carry.previous_action
    is_first = first.reshape(-1, *[1] * (previous.ndim - 1))
    step = types.Steps(
      observation=output.observation,
      reward=output.reward,
      discount=output.discount,
      step_type=output.step_type,
      previous_action=jnp.where(is_first, 0, previous),
      agent_output=(),
      parameter_version=jnp.broadcast_to(version, first.shape),
    )
    chosen, core = self.agent.act(
      params, key, types.agent_input(step), carry.core, jnp.array(self.env_id)
    )
    return step._replace(agent_output=chosen), core

  def _move(
    self, carry: Carry, action: jax.Array, core: base.Core
  ) -> tuple[Carry, Episodes]:
    """Steps the environments; returns the episodes `[N]` that ended."""
    spec = self.env.spec.action
    bounded = action
    if not spec.is_discrete:
      bounds = (np.reshape(x, spec.shape) for x in (spec.minimum, spec.maximum))
      bounded = jnp.clip(action, *bounds).astype(action.dtype)
    state, output = self.env.step(carry.env, bounded)
    moved = (output.step_type != types.StepType.FIRST).astype(jnp.int32)
    lacks_choice: types.Nest = ()
    is_lenient = self.env.spec.name.partition(':')[0] == action_masks.LENIENT
    if self.env.spec.action_mask and not is_lenient:
      # After LAST, and while an environment waits for its reset, nothing moves.
      lacks_choice = (moved > 0) & action_masks.lacks_choice(
        self.env.spec, carry.output.observation
      )
    ended = output.step_type == types.StepType.LAST
    total = carry.episode_return + output.reward
    length = carry.episode_length + moved
    carry = Carry(
      env=state,
      output=output,
      previous_action=action,
      core=core,
      episode_return=jnp.where(ended, 0.0, total),
      episode_length=jnp.where(ended, 0, length),
    )
    terminated = output.discount == 0
    task = output.observation[types.TASK] if self.env.spec.tasks else ()
    return carry, Episodes(
      ended, total, length, terminated, task, moved, lacks_choice
    )

  def _train(self, tree: types.Nest) -> types.Nest:
    """Returns the rows of a nest `[N, ...]` that train."""
    return jax.tree.map(lambda x: x[: self.num_train], tree)

  def _block(
    self, steps: types.Steps, last: types.Steps, core: base.Core, start: int
  ) -> types.Batch:
    """Returns the unrolls of environments from `start` on, with the axis."""
    assert self.block_width is not None
    part = slice(start, start + self.block_width)
    unroll = types.Unroll(
      steps=jax.tree.map(
        lambda x, y: jnp.concatenate([x[:, part], y[None, part]])[None],
        steps,
        last,
      ),
      initial_core=jax.tree.map(lambda x: x[part][None], core),
      env_id=jnp.array(self.env_id[part])[None],
    )
    return types.Batch(unroll, jnp.ones((1, self.block_width), jnp.float32))


class DeviceWorker:
  """Acts in a share of a run's environments; see `InferenceWorker`."""

  def __init__(
    self,
    program: UnrollProgram,
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

  def _count(self, episodes: Episodes) -> None:
    spec, num_train = self._program.env.spec, self.num_train_envs
    if np.any(episodes.lacks_choice):
      raise envs.EnvironmentFailed(
        f'Environment {np.argmax(episodes.lacks_choice)} of {spec.name} '
        f'{action_masks.NO_CHOICE}'
      )
    counters = self.counters
    counters.env_steps += int(episodes.env_steps[:num_train].sum())
    counters.eval_steps += int(episodes.env_steps[num_train:].sum())
    counters.batches += 1
    _, rows = places = np.nonzero(episodes.ended)
    if len(rows):
      columns = (
        episodes.episode_return,
        episodes.length,
        episodes.terminated,
        episodes.task if spec.tasks else np.zeros_like(episodes.length),
      )
      self._episodes.append((rows, *(column[places] for column in columns)))


def _fill(block: Any, batch: types.Batch, version: int) -> None:
  """Puts a batch into a block, by one copy if that is on the host."""
  if isinstance(block, device.DeviceBlock):
    block.batch, block.version = batch, version
    return
  leaves = jax.device_get(jax.tree.leaves(batch.unroll))
  for target, x in zip(block.leaves, leaves, strict=True):
    target[...] = x[0]
