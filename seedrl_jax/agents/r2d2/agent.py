"""The R2D2 agent; without burn-in and recurrent core, Ape-X DQN.

A sequence has burn-in steps, which only warm up the recurrent state; U trained
transitions; lookahead steps, for the last targets; and a bootstrap step.
"""

import functools
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import ml_collections

from seedrl_jax import types
from seedrl_jax.agents import acting, base, optimizers, sgd
from seedrl_jax.agents.r2d2 import exploration
from seedrl_jax.agents.r2d2 import loss as loss_lib
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # int32 [B]
  q_values: jax.Array  # float32 [B, A], of the parameters that acted


class QNetwork(nn.Module):
  """Action values on a network, recurrent or not."""

  network: network_lib.Network
  dueling: bool  # separate value and advantage streams
  head_hidden_size: int  # of the head or each stream; 0: linear

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[jax.Array, network_lib.CoreState]:
    """Maps `[T, B, ...]` and a core to values `[T, B, A]` and the next core."""
    features, core = self.network(inputs, core)
    head = heads.DuelingHead if self.dueling else heads.QHead
    num_actions = self.network.num_actions
    return head(num_actions, self.head_hidden_size, name='head')(features), core


def make_agent(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec
) -> base.Agent:
  """Makes the agent.

  Raises:
    ValueError: if a config value is unknown or does not fit.
  """
  network_lib.check_discrete(env_spec)
  network = network_lib.make_network(config.network, env_spec)
  module = QNetwork(
    network, config.network.dueling, config.network.head_hidden_size
  )
  init_network = acting.make_init(module, network, env_spec)
  trainer = sgd.Trainer(
    loss=make_loss(config, module),
    optimizer=optimizers.make_optimizer(config),
    learning_rate=optimizers.learning_rate(config),
    target_update_period=config.loss.target_update_period,
    micro_batches=config.learner.micro_batches,
  )
  return base.Agent(
    init=lambda key: trainer.init(init_network(key)),
    acting_params=lambda state: state.params,
    initial_core=network.initial_core,
    act=acting.make_act(
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
  epsilon = exploration.epsilons(config, env_spec, env_id)
  action = exploration.epsilon_greedy(key, q_values, epsilon)
  return AgentOutput(action, q_values)


def make_loss(
  config: ml_collections.ConfigDict, module: QNetwork
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
