"""The R2D2 agent; without burn-in and recurrent core, Ape-X DQN and DQN.

A sequence has burn-in steps, which only warm up the recurrent state; U trained
transitions; lookahead steps, for the last targets; and a bootstrap step.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base, exploration, sgd
from seedrl_jax.agents.r2d2 import loss as loss_lib
from seedrl_jax.networks import heads, health
from seedrl_jax.networks import network as network_lib


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # int32 [B]
  q_values: jax.Array  # float32 [B, A], of the parameters that acted


def make_agent(config: types.Config, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; raises ValueError if a config value does not fit."""
  network = network_lib.make_network(config.network, env_spec)
  module = heads.QNetwork(
    network, config.network.head_hidden_size, config.network.dueling
  )
  init_network = network_lib.make_init(module, network, env_spec)
  trainer = sgd.make_trainer(
    config,
    make_loss(config, module),
    target_update_period=config.loss.target_update_period,
    target_update_rate=config.loss.target_update_rate,
    keeps_progress=config.exploration.schedule == 'linear',
    moments=network.pixel_moments,
  )
  initial_priorities = functools.partial(
    loss_lib.initial_priorities,
    config.loss,
    config.burn_in,
    config.unroll_length,
  )
  is_prioritized = config.replay.sampler == 'prioritized'
  return base.Agent(
    init=lambda key: trainer.init(init_network(key)),
    acting_params=functools.partial(_acting_params, config),
    initial_core=network.initial_core,
    act=base.make_act(
      module,
      functools.partial(_choose, config.exploration, env_spec),
      exploration.network_params,
    ),
    update=trainer.update,
    trainer=trainer,
    measure=health.make_measure(module, exploration.network_params),
    overlap=config.burn_in + config.lookahead + 1,
    burn_in=config.burn_in,
    initial_priorities=initial_priorities if is_prioritized else None,
  )


def _choose(
  config: types.Config,
  env_spec: types.EnvSpec,
  params: exploration.ActingParams,
  key: jax.Array,
  q_values: jax.Array,
  env_id: jax.Array,
) -> AgentOutput:
  epsilon = params.epsilon
  if config.schedule == 'ladder':
    epsilon = exploration.ladder(
      config.epsilon_base, config.epsilon_alpha, env_spec.num_envs, env_id
    )
  epsilon = base.with_evaluation(epsilon, config.eval_epsilon, env_spec, env_id)
  action = exploration.epsilon_greedy(key, q_values, epsilon)
  return AgentOutput(action, q_values)


def _acting_params(
  config: types.Config, state: sgd.TrainState
) -> exploration.ActingParams:
  settings = config.exploration
  if settings.schedule == 'ladder':
    return exploration.ActingParams(state.params, ())
  share = settings.decay_frames / config.total_env_frames
  epsilon = exploration.linear(state.progress, settings, share)
  return exploration.ActingParams(state.params, epsilon)


def make_loss(config: types.Config, module: heads.QNetwork) -> sgd.LossFn:
  """Returns the loss of a batch under `module`."""
  burn_in = config.burn_in
  num_steps = burn_in + config.unroll_length + config.lookahead + 1

  def q_values_after_burn_in(
    params: base.Params, inputs: types.AgentInput, core: base.Core
  ) -> jax.Array:
    if burn_in:
      past = jax.tree.map(lambda x: x[:burn_in], inputs)
      inputs = jax.tree.map(lambda x: x[burn_in:], inputs)
      # Without gradient. XLA drops the unused values.
      variables = {'params': jax.lax.stop_gradient(params)}
      _, core = module.apply(variables, past, core)
    return module.apply({'params': params}, inputs, core)[0]

  def loss(
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    key: jax.Array,
    progress: types.Nest = (),
  ) -> tuple[jax.Array, sgd.LossOutput]:
    del key, progress  # Nothing is left to chance.
    steps, core = batch.unroll.steps, batch.unroll.initial_core
    chex.assert_axis_dimension(steps.reward, 0, num_steps)
    if config.loss.initial_state == 'zero':
      # Earlier frames stay.
      core = core._replace(lstm=jax.tree.map(jnp.zeros_like, core.lstm))
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
