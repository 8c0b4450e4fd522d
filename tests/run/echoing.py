"""A toy agent for actions of any shape, which checks its training data.

In `tests.envs.toys:echo` the observation is the last action. Training fails if
an action is not the next step's previous action and observation.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base


class Output(NamedTuple):
  """The action, `[B, ...]` as the environments' `ActionSpec` says."""

  action: jax.Array


def _choose(
  spec: types.ActionSpec, key: jax.Array, scale: jax.Array, count: int
) -> jax.Array:
  shape = (count, *spec.shape)
  if spec.is_discrete:
    low, high = (
      jnp.reshape(jnp.array(x, spec.dtype), spec.shape)
      for x in (spec.minimum, spec.maximum)
    )
    return jax.random.randint(key, shape, low, high + 1)
  # A linear policy, squashed into the bounds.
  return jnp.tanh(scale * jax.random.normal(key, shape))


def make_agent(config: Any, env_spec: types.EnvSpec) -> base.Agent:
  """Makes an agent that acts at random and learns nothing."""
  del config
  spec = env_spec.action

  def act(
    params: base.Params,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[Output, base.Core]:
    del step
    parts = [
      _choose(part, key, params['scale'], len(env_id)).reshape(numbers.shape)
      for part, numbers in spec.split(jnp.zeros((len(env_id), *spec.shape)))
    ]
    action = jnp.concatenate(parts, axis=-1) if spec.parts else parts[0]
    return Output(action.astype(spec.dtype)), core

  def update(
    state: base.State, batch: types.Batch, key: jax.Array, progress: jax.Array
  ) -> tuple[base.State, base.UpdateOutput]:
    del key, progress
    steps = batch.unroll.steps
    first = steps.step_type == types.StepType.FIRST
    action, previous = steps.agent_output.action, steps.previous_action
    mask = first.reshape(*first.shape, *[1] * len(spec.shape))
    expected = jnp.where(mask[1:], jnp.zeros_like(action[1:]), action[:-1])
    is_right = (
      jnp.all(previous[1:] == expected)
      & jnp.all(steps.observation == previous)
      & jnp.any(action != 0)
    )
    wrong = base.mean_over_devices(1.0 - is_right.astype(jnp.float32))
    state = {'scale': state['scale'] + 0.1}
    return state, base.UpdateOutput({'total': wrong}, wrong == 0)

  return base.Agent(
    init=lambda key: {'scale': jnp.ones(())},
    acting_params=lambda state: state,
    initial_core=lambda batch: (),
    act=act,
    update=update,
  )


def policy(env_spec: types.EnvSpec, seed: int) -> Any:
  """A policy for demonstrations: always the largest action."""
  del seed
  spec = env_spec.action
  values = jnp.reshape(jnp.array(spec.maximum, spec.dtype), spec.shape)
  return lambda output: jnp.stack([values] * len(output.env_id))
