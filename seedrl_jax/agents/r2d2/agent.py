"""The R2D2 agent; without burn-in and recurrent core, Ape-X DQN and DQN.

A sequence has burn-in steps, which only warm up the recurrent state; U trained
transitions; lookahead steps, for the last targets; and a bootstrap step.
"""

import functools
from typing import NamedTuple

import jax

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
    loss_lib.make_loss(config, module),
    target_update_period=config.loss.target_update_period,
    target_update_rate=config.loss.target_update_rate,
    keeps_progress=config.exploration.schedule == 'linear',
    moments=network.pixel_moments,
  )
  priorities = functools.partial(loss_lib.initial_priorities, config)
  is_prioritized = config.replay.sampler == 'prioritized'
  return base.Agent(
    init=lambda key: trainer.init(init_network(key)),
    acting_params=functools.partial(_acting_params, config),
    initial_core=network.initial_core,
    act=exploration.make_act(module, config.exploration, env_spec, AgentOutput),
    update=trainer.update,
    trainer=trainer,
    measure=health.make_measure(module, exploration.network_params),
    overlap=config.burn_in + config.lookahead + 1,
    burn_in=config.burn_in,
    initial_priorities=priorities if is_prioritized else None,
  )


def _acting_params(
  config: types.Config, state: sgd.TrainState
) -> exploration.ActingParams:
  settings = config.exploration
  if settings.schedule == 'ladder':
    return exploration.ActingParams(state.params, ())
  share = settings.decay_frames / config.total_env_frames
  epsilon = exploration.linear(state.progress, settings, share)
  return exploration.ActingParams(state.params, epsilon)
