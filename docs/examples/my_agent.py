"""An agent of one's own: an advantage actor-critic without any correction."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections

from seedrl_jax import types
from seedrl_jax.agents import base, optimizer_config, sgd, transitions
from seedrl_jax.networks import distributions, heads
from seedrl_jax.networks import network as network_lib
from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section
from seedrl_jax.runtime.settings import number

# The agent's own keys, and the actions that it can choose.
KEYS: keys.Table = {
  'loss': Section('An advantage actor-critic.'),
  'loss.discount': Key(0.9, number(0, 1), 'The discount of a step.'),
  'loss.entropy_cost': Key(0.01, number(0), "Weight of the policy's entropy."),
  **optimizer_config.KEYS,
}
ACTIONS = ('discrete',)


class AgentOutput(NamedTuple):
  """What acting records: `action`, int32 `[B]`."""

  action: jax.Array


def make_agent(
  config: ml_collections.ConfigDict, env_spec: types.EnvSpec
) -> base.Agent:
  """Makes the agent; --config.agent=my_agent names this module."""
  network = network_lib.make_network(config.network, env_spec)
  module = heads.ActorCritic(network, distributions.make(env_spec.action))

  def choose(
    key: jax.Array, outputs: heads.ActorCriticOutput, env_id: jax.Array
  ) -> AgentOutput:
    sampled = jax.random.categorical(key, outputs.policy)
    best = jnp.argmax(outputs.policy, axis=-1)
    action = base.with_evaluation(sampled, best, env_spec, env_id)
    return AgentOutput(action.astype(jnp.int32))

  def loss(
    params: base.Params,
    target: base.Params,
    batch: types.Batch,
    key: jax.Array,
    progress: types.Nest,
  ) -> tuple[jax.Array, sgd.LossOutput]:
    # There is no target network, no chance and no schedule.
    del target, key, progress
    steps = batch.unroll.steps  # [T + 1, B, ...]
    outputs, _ = module.apply(
      {'params': params}, types.agent_input(steps), batch.unroll.initial_core
    )
    # `valid` is False from an episode's last step to the next one's first.
    data = transitions.from_steps(steps, discount=config.loss.discount)
    value = outputs.baseline
    target_value = data.reward + data.discount * value[1:]
    error = jax.lax.stop_gradient(target_value) - value[:-1]
    log_policy = jax.nn.log_softmax(outputs.policy[:-1])
    log_prob = transitions.of_action(log_policy, steps.agent_output.action[:-1])
    entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1)
    each = (
      0.5 * jnp.square(error)
      - jax.lax.stop_gradient(error) * log_prob
      - config.loss.entropy_cost * entropy
    )
    metrics = {'entropy': transitions.mean_of_valid(entropy, data.valid)}
    total = jnp.sum(jnp.where(data.valid, each, 0.0)) / data.valid.size
    # The update divides by it, over all devices: a mean over what is valid.
    valid_share = jnp.mean(data.valid)
    return total, sgd.LossOutput(metrics, valid_share=valid_share)

  init_params = network_lib.make_init(module, network, env_spec)
  trainer = sgd.make_trainer(config, loss)
  return base.Agent(
    init=lambda key: trainer.init(init_params(key)),
    acting_params=lambda state: state.params,
    initial_core=network.initial_core,
    act=base.make_act(module, choose),
    update=trainer.update,
  )
