"""REINFORCE (Williams, 1992) with a learned baseline, as a third agent.

It uses only the public interface: `config.agent` names this module.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base, optimizers, sgd
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib


class AgentOutput(NamedTuple):
  """`action`, int32 `[B]`; on-policy learning needs nothing else."""

  action: jax.Array


class PolicyAndValue(nn.Module):
  """Maps `[T, B]` inputs to logits `[T, B, A]` and values `[T, B]`."""

  network: network_lib.Network

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[jax.Array, jax.Array, network_lib.CoreState]:
    features, core = self.network(inputs, core)
    logits = heads.PolicyHead(self.network.num_actions)(features)
    return logits, heads.BaselineHead()(features), core


def returns_to_go(
  steps: types.Steps, discount: float
) -> tuple[jax.Array, jax.Array]:
  """Returns Monte Carlo returns of the episodes that end in the unroll.

  They are float32 `[T, B]`, with a bool `[T, B]`: whether the transition's
  episode ends in the unroll. `steps` is `[T + 1, B]`.
  """

  def step(
    carry: tuple[jax.Array, jax.Array], xs: tuple[jax.Array, ...]
  ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    total, ended = carry
    reward, step_type = xs
    last = step_type == types.StepType.LAST
    # A transition into FIRST is invalid and does not end an episode.
    ended = (ended | last) & (step_type != types.StepType.FIRST)
    total = reward + discount * jnp.where(last, 0.0, total)
    return (total, ended), (total, ended)

  batch = steps.reward.shape[1]
  start = (jnp.zeros(batch), jnp.zeros(batch, bool))
  _, (returns, ended) = jax.lax.scan(
    step, start, (steps.reward[1:], steps.step_type[1:]), reverse=True
  )
  return returns, ended


def reinforce_loss(
  logits: jax.Array, values: jax.Array, steps: types.Steps, config: Any
) -> jax.Array:
  """Returns -(G - V) log pi + 0.5 (G - V)^2 - entropy, over T x B.

  Logits, values and steps are `[T + 1, B]`; `config` is `config.loss`.
  """
  returns, ended = returns_to_go(steps, config.discount)
  log_pi = jax.nn.log_softmax(logits[:-1])
  action = steps.agent_output.action[:-1, :, None]
  log_prob = jnp.take_along_axis(log_pi, action, axis=-1)[..., 0]
  error = returns - values[:-1]
  entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1)
  loss = (
    -jax.lax.stop_gradient(error) * log_prob
    + config.baseline_cost * 0.5 * jnp.square(error)
    - config.entropy_cost * entropy
  )
  return jnp.mean(jnp.where(ended, loss, 0.0))


def make_agent(config: Any, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; see `agents.base`."""
  net = network_lib.make_network(config.network, env_spec)
  model = PolicyAndValue(net)

  def init(key: jax.Array) -> base.Params:
    inputs = network_lib.dummy_inputs(env_spec)
    return model.init(key, inputs, net.initial_core(1))

  def act(
    params: base.Params,
    key: jax.Array,
    step: types.AgentInput,
    core: base.Core,
    env_id: jax.Array,
  ) -> tuple[AgentOutput, base.Core]:
    inputs = jax.tree.map(lambda x: x[None], step)
    logits, _, core = model.apply(params, inputs, core)
    action = jnp.where(
      env_id >= env_spec.num_envs,
      jnp.argmax(logits[0], axis=-1),
      jax.random.categorical(key, logits[0]),
    )
    return AgentOutput(action.astype(jnp.int32)), core

  def loss(
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    key: jax.Array,
  ) -> tuple[jax.Array, sgd.LossOutput]:
    del target_params, key
    steps = batch.unroll.steps
    logits, values, _ = model.apply(
      params, types.agent_input(steps), batch.unroll.initial_core
    )
    value = reinforce_loss(logits, values, steps, config.loss)
    return value, sgd.LossOutput({})

  trainer = sgd.Trainer(
    loss, optimizers.make_optimizer(config), optimizers.learning_rate(config)
  )
  return base.Agent(
    init=lambda key: trainer.init(init(key)),
    acting_params=lambda state: state.params,
    initial_core=net.initial_core,
    act=act,
    update=trainer.update,
  )
