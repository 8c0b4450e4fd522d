"""The V-trace agent; an adapting entropy cost is one of its parameters."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base, reward_config, sgd
from seedrl_jax.agents.vtrace import loss as loss_lib
from seedrl_jax.networks import distributions, heads, health, popart
from seedrl_jax.networks import network as network_lib

# Least standard deviation of a continuous part of an action, half the distance
# between its bounds being 1.
_MIN_DEVIATION = 1e-3


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # [B, *shape]
  # Float32 [B, P] of the behaviour policy: the distribution's parameters.
  policy_logits: jax.Array


def make_agent(config: types.Config, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; raises ValueError if a config value does not fit."""
  network = network_lib.make_network(config.network, env_spec)
  distribution = distributions.make(env_spec.action, _MIN_DEVIATION)
  has_popart = reward_config.uses_popart(config)
  module = heads.ActorCritic(
    network, distribution, free_deviation=True, popart=has_popart
  )
  init_network = network_lib.make_init(module, network, env_spec)

  def absorb(params: base.Params, returns: popart.BatchMoments) -> base.Params:
    return {**params, 'network': popart.absorb(params['network'], returns)}

  trainer = sgd.make_trainer(
    config,
    loss_lib.make_loss(config, module),
    project=functools.partial(loss_lib.project, config.loss),
    moments=network.pixel_moments,
    absorb_returns=absorb if has_popart else None,
  )

  def init(key: jax.Array) -> sgd.TrainState:
    params = {'network': init_network(key)}
    if config.loss.target_entropy is not None:
      params['entropy_cost'] = loss_lib.initial_entropy_cost_param(config.loss)
    return trainer.init(params)

  def choose(
    key: jax.Array, outputs: heads.ActorCriticOutput, env_id: jax.Array
  ) -> AgentOutput:
    logits = outputs.policy
    if env_spec.action.kind == 'discrete':
      # Normalised logits would round, and choose otherwise in rare cases.
      sampled = jax.random.categorical(key, logits)
      greedy = jnp.argmax(logits, axis=-1)
    else:
      sampled = distribution.sample(key, logits)
      greedy = distribution.mode(logits)
    action = base.with_evaluation(sampled, greedy, env_spec, env_id)
    return AgentOutput(action.astype(env_spec.action.dtype), logits)

  return base.Agent(
    init=init,
    acting_params=lambda state: state.params['network'],
    initial_core=network.initial_core,
    act=base.make_act(module, choose),
    update=trainer.update,
    trainer=trainer,
    measure=health.make_measure(module),
  )
