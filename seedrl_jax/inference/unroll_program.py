"""Acting and stepping environments in JAX, as one program on a core."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import action_masks


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
