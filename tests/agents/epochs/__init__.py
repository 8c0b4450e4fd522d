"""A short PPO (arXiv 1707.06347): several optimiser steps for each batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import optax

from seedrl_jax import types
from seedrl_jax.agents import base, optimizers, transitions
from seedrl_jax.networks import distributions, heads
from seedrl_jax.networks import network as network_lib
from tests.agents.epochs.keys import KEYS

__all__ = ('KEYS', 'AgentOutput', 'State', 'make_agent')


class AgentOutput(NamedTuple):
  """`action`, int32 `[B]`, and its log-probability, float32 `[B]`."""

  action: jax.Array
  log_prob: jax.Array


class State(NamedTuple):
  params: base.Params
  opt_state: optax.OptState


def _log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
  return transitions.of_action(jax.nn.log_softmax(logits), action)


def _choose(key: jax.Array, outputs, env_id: jax.Array) -> AgentOutput:
  del env_id
  logits = outputs.policy
  action = jax.random.categorical(key, logits).astype(jnp.int32)
  return AgentOutput(action, _log_prob(logits, action))


def make_agent(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec
) -> base.Agent:
  """Makes the agent; see `agents.base`."""
  network = network_lib.make_network(config.network, env_spec)
  module = heads.ActorCritic(network, distributions.make(env_spec.action))
  init_params = network_lib.make_init(module, network, env_spec)
  optimizer = optimizers.make(config)
  learning_rate = optimizers.learning_rate(config)

  def init(key: jax.Array) -> State:
    params = init_params(key)
    return State(params, optimizer.init(params))

  def loss(params: base.Params, batch: types.Batch) -> jax.Array:
    steps = batch.unroll.steps
    outputs, _ = module.apply(
      {'params': params}, types.agent_input(steps), batch.unroll.initial_core
    )
    made = transitions.from_steps(steps, discount=config.loss.discount)
    value = outputs.baseline
    target = made.reward + made.discount * jax.lax.stop_gradient(value[1:])
    error = jnp.where(made.valid, target - value[:-1], 0.0)
    acted = steps.agent_output
    log_prob = _log_prob(outputs.policy, acted.action)
    ratio = jnp.exp(log_prob - acted.log_prob)[:-1]
    clip = config.loss.clip
    clipped = jnp.clip(ratio, 1.0 - clip, 1.0 + clip)
    advantage = jax.lax.stop_gradient(error)
    gain = jnp.minimum(ratio * advantage, clipped * advantage)
    return jnp.mean(0.5 * jnp.square(error) - gain)

  def update(
    state: State, batch: types.Batch, key: jax.Array, progress: jax.Array
  ) -> tuple[State, base.UpdateOutput]:
    rate = learning_rate(progress)

    def step(
      state: State, rows: jax.Array
    ) -> tuple[State, tuple[jax.Array, jax.Array]]:
      value, grads = base.mean_over_devices(
        jax.value_and_grad(loss)(state.params, base.select_unrolls(batch, rows))
      )
      updates, opt_state = optimizer.update(
        grads, state.opt_state, state.params
      )
      updates = optax.tree.scale(rate, updates)
      params = optax.apply_updates(state.params, updates)
      return State(params, opt_state), (value, optax.tree.norm(grads))

    size = len(batch.weight)
    orders = [
      jax.random.permutation(k, size).reshape((config.minibatches, -1))
      for k in jax.random.split(key, config.epochs)
    ]
    state, (losses, norms) = jax.lax.scan(step, state, jnp.concatenate(orders))
    metrics = {
      'total': jnp.mean(losses),
      'gradient_norm': jnp.max(norms),
      'learning_rate': rate,
    }
    finite = jnp.isfinite(jnp.stack([losses, norms])).all()
    return state, base.UpdateOutput(metrics, finite)

  return base.Agent(
    init=init,
    acting_params=lambda state: state.params,
    initial_core=network.initial_core,
    act=base.make_act(module, _choose),
    update=update,
    updates_per_batch=config.epochs * config.minibatches,
  )
