"""The V-trace agent: what inference and the learner call.

Parameters are `{'network': ...}`, and `'entropy_cost'` beside it where the
entropy cost adapts (`loss.entropy_cost` says how).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import acting, base
from seedrl_jax.agents.vtrace import loss as loss_lib
from seedrl_jax.agents.vtrace import networks
from seedrl_jax.networks import network as network_lib


class AgentOutput(NamedTuple):
  """What acting records for learning.

  Attributes:
    action: int32 `[B]`.
    policy_logits: float32 `[B, A]`, of the behaviour policy.
  """

  action: jax.Array
  policy_logits: jax.Array


def make_agent(config: Any, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent.

  Args:
    config: the run's configuration; `network`, `loss`, `unroll_length` and
      `batch_size` matter.
    env_spec: the environments that it acts in.

  Raises:
    ValueError: where a value of the config is unknown or does not fit.
  """
  network = network_lib.make_network(config.network, env_spec)
  module = networks.ActorCritic(network)
  init_network = acting.make_init(module, network, env_spec)
  return base.Agent(
    init=functools.partial(_init, config.loss, init_network),
    initial_core=network.initial_core,
    act=acting.make_act(
      module, functools.partial(_choose, env_spec), _network_params
    ),
    loss=_make_loss(config, module),
    project=functools.partial(_project, config.loss),
  )


def _network_params(params: base.Params) -> base.Params:
  return params['network']


def _init(
  config: Any,
  init_network: Callable[[jax.Array], base.Params],
  key: jax.Array,
) -> base.Params:
  """Makes the parameters; `config` is `config.loss`."""
  params = {'network': init_network(key)}
  if config.target_entropy is not None:
    params['entropy_cost'] = loss_lib.initial_entropy_cost_param(config)
  return params


def _project(config: Any, params: base.Params) -> base.Params:
  """Keeps the entropy cost in its bounds; `config` is `config.loss`."""
  if config.target_entropy is None:
    return params
  speed = config.entropy_cost_adjustment_speed
  param = loss_lib.bound_entropy_cost_param(params['entropy_cost'], speed)
  return {**params, 'entropy_cost': param}


def _choose(
  env_spec: types.EnvSpec,
  key: jax.Array,
  outputs: networks.ActorCriticOutput,
  env_id: jax.Array,
) -> AgentOutput:
  """Samples from the policy; evaluation environments get its likeliest."""
  logits = outputs.policy_logits
  sampled = jax.random.categorical(key, logits)
  greedy = jnp.argmax(logits, axis=-1)
  action = jnp.where(env_id >= env_spec.num_envs, greedy, sampled)
  return AgentOutput(action.astype(jnp.int32), logits)


def _make_loss(config: Any, module: networks.ActorCritic) -> base.LossFn:
  scale = loss_lib.reduction_scale(
    config.loss, config.unroll_length, config.batch_size
  )

  def loss(
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    key: jax.Array,
  ) -> tuple[jax.Array, base.LossOutput]:
    del target_params, key  # Neither a target network nor chance is needed.
    unroll = batch.unroll
    outputs, _ = module.apply(
      {'params': _network_params(params)},
      types.agent_input(unroll.steps),
      unroll.initial_core,
    )
    cost = jnp.float32(config.loss.entropy_cost)
    if config.loss.target_entropy is not None:
      speed = config.loss.entropy_cost_adjustment_speed
      cost = jnp.exp(speed * params['entropy_cost'])
    value, metrics = loss_lib.vtrace_loss(
      config.loss, outputs, unroll.steps, cost
    )
    value *= scale
    return value, base.LossOutput(metrics)

  return loss
