"""An agent for any `ActionSpec` that acts as its parameters say."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base


class Output(NamedTuple):
  """`action` as the environment takes it, and a value, float32 `[B]`."""

  action: jax.Array
  value: jax.Array


def make_agent(config: Any, env_spec: types.EnvSpec) -> base.Agent:
  """Makes an agent that starts with the largest action."""
  del config
  spec = env_spec.action

  def init(key: jax.Array) -> base.State:
    del key
    return {'action': jnp.asarray(spec.maximum, spec.dtype)}

  def act(
    params: base.Params,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[Output, base.Core]:
    del key, env_id
    shape = (*step.reward.shape, *spec.shape)
    action = jnp.broadcast_to(params['action'].reshape(spec.shape), shape)
    return Output(action, jnp.ones_like(step.reward)), core

  def update(*args: Any) -> Any:
    raise NotImplementedError('It does not learn.')

  return base.Agent(
    init=init,
    acting_params=lambda state: state,
    initial_core=lambda batch: (),
    act=act,
    update=update,
  )
