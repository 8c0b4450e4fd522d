"""The R2D2 agent; without burn-in and recurrent core, Ape-X DQN.

A sequence has burn-in steps, which only warm up the recurrent state; U trained
transitions; lookahead steps, for the last targets; and a bootstrap step.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base, sgd
from seedrl_jax.agents.r2d2 import loss as loss_lib
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib

_GOLDEN_RATIO = (5**0.5 - 1) / 2


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # int32 [B]
  q_values: jax.Array  # float32 [B, A], of the parameters that acted


def make_agent(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec
) -> base.Agent:
  """Makes the agent.

  Raises:
    ValueError: if a config value is unknown or does not fit.
  """
  network = network_lib.make_network(config.network, env_spec)
  module = heads.QNetwork(
    network, config.network.head_hidden_size, config.network.dueling
  )
  init_network = network_lib.make_init(module, network, env_spec)
  trainer = sgd.make_trainer(
    config,
    make_loss(config, module),
    target_update_period=config.loss.target_update_period,
  )
  return base.Agent(
    init=lambda key: trainer.init(init_network(key)),
    acting_params=lambda state: state.params,
    initial_core=network.initial_core,
    act=base.make_act(
      module, functools.partial(_choose, config.exploration, env_spec)
    ),
    update=trainer.update,
    overlap=config.burn_in + config.lookahead + 1,
    initial_priorities=functools.partial(
      loss_lib.initial_priorities,
      config.loss,
      config.burn_in,
      config.unroll_length,
    ),
  )


def _choose(
  config: ml_collections.ConfigDict,
  env_spec: types.EnvSpec,
  key: jax.Array,
  q_values: jax.Array,
  env_id: jax.Array,
) -> AgentOutput:
  epsilon = epsilons(config, env_spec, env_id)
  return AgentOutput(epsilon_greedy(key, q_values, epsilon), q_values)


def epsilons(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec, env_id: jax.Array
) -> jax.Array:
  """Returns the epsilon of each global `env_id`, float32 `[B]`.

  Training environment i of N has base^(1 + alpha i / (N - 1)), with i a
  permutation of the ids (Ape-X, Horgan et al. 2018, arXiv 1803.00933, section
  4); evaluation environments have `eval_epsilon`.
  """
  num_envs = env_spec.num_envs
  share = _places(num_envs) / max(num_envs - 1, 1)
  power = jnp.float32(1.0 + config.epsilon_alpha * share)
  epsilon = jnp.power(jnp.float32(config.epsilon_base), power)
  training = epsilon[jnp.minimum(env_id, num_envs - 1)]
  return jnp.where(env_id >= num_envs, config.eval_epsilon, training)


def _places(num_envs: int) -> np.ndarray:
  """Returns a permutation, int `[N]`, that spreads consecutive ids evenly.

  Actors with fewer environments than allowed get consecutive ids.
  """
  return np.argsort(np.argsort(np.arange(num_envs) * _GOLDEN_RATIO % 1.0))


def epsilon_greedy(
  key: jax.Array, q_values: jax.Array, epsilon: jax.Array
) -> jax.Array:
  """Returns epsilon-greedy actions, int32 `[B]`.

  `q_values` is float32 `[B, A]`; `epsilon`, `[B]`, is the probability of a
  uniformly random action.
  """
  batch, num_actions = q_values.shape
  chex.assert_shape(epsilon, (batch,))
  explore_key, action_key = jax.random.split(key)
  explores = jax.random.uniform(explore_key, (batch,)) < epsilon
  anything = jax.random.randint(action_key, (batch,), 0, num_actions)
  best = jnp.argmax(q_values, axis=-1)
  return jnp.where(explores, anything, best).astype(jnp.int32)


def make_loss(
  config: ml_collections.ConfigDict, module: heads.QNetwork
) -> sgd.LossFn:
  """Returns the loss of a batch under `module`."""
  burn_in = config.burn_in
  num_steps = burn_in + config.unroll_length + config.lookahead + 1

  def q_values_after_burn_in(
    params: base.Params, inputs: types.AgentInput, core: base.Core
  ) -> jax.Array:
    if burn_in:
      past, inputs = (
        jax.tree.map(lambda x, s=s: x[s], inputs)
        for s in (slice(burn_in), slice(burn_in, None))
      )
      # Without gradient. XLA drops the unused values.
      variables = {'params': jax.lax.stop_gradient(params)}
      _, core = module.apply(variables, past, core)
    return module.apply({'params': params}, inputs, core)[0]

  def loss(
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    key: jax.Array,
  ) -> tuple[jax.Array, sgd.LossOutput]:
    del key  # Nothing is left to chance.
    steps, core = batch.unroll.steps, batch.unroll.initial_core
    chex.assert_axis_dimension(steps.reward, 0, num_steps)
    if config.loss.initial_state == 'zero':
      core = network_lib.without_memory(core)
    inputs = types.agent_input(steps)
    return loss_lib.q_loss(
      config.loss,
      q_values_after_burn_in(params, inputs, core),
      q_values_after_burn_in(target_params, inputs, core),
      jax.tree.map(lambda x: x[burn_in:], steps),
      batch.weight,
      config.unroll_length,
    )

  return loss
