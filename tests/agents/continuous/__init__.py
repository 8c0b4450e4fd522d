"""A toy actor-critic with continuous actions and two optimisers.

The actions' standard deviation follows a schedule in the acting parameters.
"""

from typing import NamedTuple

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.agents import base, transitions
from seedrl_jax.networks import network as network_lib
from tests.agents.continuous.config import RANGES

__all__ = ('RANGES', 'AgentOutput', 'Params', 'make_agent')


class AgentOutput(NamedTuple):
  """`action`, float32 `[B, ...]`; on-policy learning needs nothing else."""

  action: jax.Array


class Params(NamedTuple):
  """Acting parameters: the policy's, and its deviation, a scalar."""

  actor: base.Params
  deviation: jax.Array


class State(NamedTuple):
  """What training changes; each optimiser has its own parameters."""

  actor: base.Params
  actor_opt: optax.OptState
  critic: base.Params
  critic_opt: optax.OptState
  deviation: jax.Array


class Regression(nn.Module):
  """Maps `[T, B]` inputs to numbers `[T, B, *shape]`, at first 0."""

  network: network_lib.Network
  shape: tuple[int, ...]

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[jax.Array, network_lib.CoreState]:
    features, core = self.network(inputs, core)
    size = int(np.prod(self.shape))
    numbers = nn.Dense(size, kernel_init=nn.initializers.zeros)(features)
    return numbers.reshape((*inputs.first.shape, *self.shape)), core


def make_agent(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec
) -> base.Agent:
  """Makes the agent; see `agents.base`."""
  network = network_lib.make_network(config.network, env_spec)
  actor = Regression(network, env_spec.action.shape)
  critic = Regression(network, ())
  init_actor, init_critic = (
    network_lib.make_init(module, network, env_spec)
    for module in (actor, critic)
  )
  actor_optimizer = optax.adam(config.actor.learning_rate)
  critic_optimizer = optax.adam(config.critic.learning_rate)

  def init(key: jax.Array) -> State:
    actor_key, critic_key = jax.random.split(key)
    params = init_actor(actor_key), init_critic(critic_key)
    return State(
      params[0],
      actor_optimizer.init(params[0]),
      params[1],
      critic_optimizer.init(params[1]),
      jnp.float32(config.exploration.first),
    )

  def act(
    params: Params,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[AgentOutput, base.Core]:
    def choose(key: jax.Array, mean: jax.Array, _: jax.Array) -> AgentOutput:
      noise = params.deviation * jax.random.normal(key, mean.shape)
      is_eval = (env_id >= env_spec.num_envs)[:, None]
      return AgentOutput(mean + jnp.where(is_eval, 0.0, noise))

    return base.make_act(actor, choose)(params.actor, key, step, core, env_id)

  def actor_loss(
    params: base.Params, batch: types.Batch, advantage: jax.Array, deviation
  ) -> jax.Array:
    steps = batch.unroll.steps
    mean, _ = actor.apply(
      {'params': params}, types.agent_input(steps), batch.unroll.initial_core
    )
    error = jnp.square((steps.agent_output.action - mean)[:-1] / deviation)
    return jnp.mean(0.5 * advantage * jnp.sum(error, axis=-1))

  def critic_loss(
    params: base.Params, batch: types.Batch
  ) -> tuple[jax.Array, jax.Array]:
    steps = batch.unroll.steps
    value, _ = critic.apply(
      {'params': params}, types.agent_input(steps), batch.unroll.initial_core
    )
    trajectory = transitions.from_steps(steps, discount=config.loss.discount)
    target = trajectory.reward + trajectory.discount * jax.lax.stop_gradient(
      value[1:]
    )
    error = jnp.where(trajectory.valid, target - value[:-1], 0.0)
    return 0.5 * jnp.mean(jnp.square(error)), error

  def update(
    state: State, batch: types.Batch, key: jax.Array, progress: jax.Array
  ) -> tuple[State, base.UpdateOutput]:
    del key
    (value_loss, advantage), critic_grads = jax.value_and_grad(
      critic_loss, has_aux=True
    )(state.critic, batch)
    policy_loss, actor_grads = jax.value_and_grad(actor_loss)(
      state.actor, batch, jax.lax.stop_gradient(advantage), state.deviation
    )
    metrics, actor_grads, critic_grads = base.mean_over_devices((
      {'policy': policy_loss, 'value': value_loss},
      actor_grads,
      critic_grads,
    ))
    actor_updates, actor_opt = actor_optimizer.update(
      actor_grads, state.actor_opt
    )
    critic_updates, critic_opt = critic_optimizer.update(
      critic_grads, state.critic_opt
    )
    first, last = config.exploration.first, config.exploration.last
    new_state = State(
      optax.apply_updates(state.actor, actor_updates),
      actor_opt,
      optax.apply_updates(state.critic, critic_updates),
      critic_opt,
      first + jnp.minimum(progress, 1.0) * (last - first),
    )
    norm = optax.tree.norm((actor_grads, critic_grads))
    metrics |= {'gradient_norm': norm, 'deviation': new_state.deviation}
    return new_state, base.UpdateOutput(metrics, jnp.isfinite(norm))

  return base.Agent(
    init=init,
    acting_params=lambda state: Params(state.actor, state.deviation),
    initial_core=network.initial_core,
    act=act,
    update=update,
  )


class Reach(gymnasium.Env):
  """Eight steps, each rewarded for an action near the observation."""

  def __init__(self) -> None:
    self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
    self.action_space = spaces.Box(-1, 1, (2,), np.float32)
    self._step, self._goal = 0, np.zeros(2, np.float32)

  def _observe(self) -> np.ndarray:
    self._goal = self.np_random.uniform(-0.8, 0.8, 2).astype(np.float32)
    return self._goal

  def reset(self, **kwargs):
    super().reset(**kwargs)
    self._step = 0
    return self._observe(), {}

  def step(self, action):
    self._step += 1
    reward = 1.0 - float(np.abs(action - self._goal).sum())
    return self._observe(), reward, False, self._step == 8, {}


def reach() -> gymnasium.Env:
  return Reach()
