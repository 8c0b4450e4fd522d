"""The PQN agent: several epochs of Q-learning on each batch of unrolls.

As published, the targets of a batch are fixed before its first optimiser step.
The current parameters compute them, those before that step, and not those that
acted, which may be a few versions older.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base, exploration, sgd
from seedrl_jax.agents.pqn import loss as loss_lib
from seedrl_jax.networks import block_conv, heads, health
from seedrl_jax.networks import network as network_lib


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # int32 [B]


class Sample(NamedTuple):
  """An action, and what learning moves its value to."""

  action: jax.Array  # int32 [T + 1, B]
  target: jax.Array  # float32 [T + 1, B]


def make_agent(config: types.Config, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; raises ValueError if a config value does not fit."""
  sgd.refuse_pieces(config)
  network = network_lib.make_network(config.network, env_spec)
  module = heads.QNetwork(network, hidden_size=0, dueling=False)
  init_network = network_lib.make_init(module, network, env_spec)
  trainer = sgd.make_trainer(
    config,
    make_loss(module),
    keeps_progress=True,
    moments=network.pixel_moments,
  )
  explore = config.exploration

  def acting_params(state: sgd.TrainState) -> exploration.ActingParams:
    epsilon = exploration.linear(state.progress, explore, explore.decay_share)
    return exploration.ActingParams(state.params, epsilon)

  return base.Agent(
    init=lambda key: trainer.init(init_network(key)),
    acting_params=acting_params,
    initial_core=network.initial_core,
    act=exploration.make_act(
      module,
      config.exploration,
      env_spec,
      lambda action, _: AgentOutput(action),
    ),
    update=functools.partial(_update, config, module, trainer),
    updates_per_batch=config.epochs * config.minibatches,
    measure=health.make_measure(module, exploration.network_params),
    check_share=functools.partial(sgd.check_divides, count=config.minibatches),
  )


def _q_values(
  module: heads.QNetwork, params: base.Params, unroll: types.Unroll
) -> jax.Array:
  inputs = types.agent_input(unroll.steps)
  return module.apply({'params': params}, inputs, unroll.initial_core)[0]


def make_loss(module: heads.QNetwork) -> sgd.LossFn:
  """Returns the loss of unrolls of `Sample`s under `module`."""

  def loss(
    params: base.Params, _: base.Params, batch: types.Batch, *unused: Any
  ) -> tuple[jax.Array, sgd.LossOutput]:
    q_values = _q_values(module, params, batch.unroll)
    return loss_lib.q_loss(q_values, batch.unroll.steps)

  return loss


def with_targets(
  config: types.Config,
  module: heads.QNetwork,
  params: base.Params,
  batch: types.Batch,
) -> types.Batch:
  """Returns the batch with `Sample`s for agent outputs.

  Computes one minibatch of values at a time, as the whole batch's activations
  would fill a small host's memory.
  """

  def minibatch_targets(rows: jax.Array) -> jax.Array:
    unroll = base.select_unrolls(batch, rows).unroll
    q_values = _q_values(module, params, unroll)
    return loss_lib.targets(config.loss, q_values, unroll.steps)

  size = batch.weight.shape[0]
  rows = jnp.arange(size).reshape((config.minibatches, -1))
  with block_conv.for_loops():
    target = jnp.moveaxis(jax.lax.map(minibatch_targets, rows), 0, 1)
  # The last step has no transition.
  target = jnp.pad(target.reshape((-1, size)), ((0, 1), (0, 0)))
  steps = batch.unroll.steps
  sample = Sample(steps.agent_output.action, target)
  unroll = batch.unroll._replace(steps=steps._replace(agent_output=sample))
  return batch._replace(unroll=unroll)


def _update(
  config: types.Config,
  module: heads.QNetwork,
  trainer: sgd.Trainer,
  state: sgd.TrainState,
  batch: types.Batch,
  key: jax.Array,
  progress: jax.Array,
) -> tuple[sgd.TrainState, base.UpdateOutput]:
  batch = with_targets(config, module, state.params, batch)

  def step(
    state: sgd.TrainState, rows: jax.Array
  ) -> tuple[sgd.TrainState, base.UpdateOutput]:
    part = base.select_unrolls(batch, rows)
    return trainer.update(state, part, key, progress)

  return sgd.run_minibatches(
    step,
    state,
    key,
    size=batch.weight.shape[0],
    epochs=config.epochs,
    minibatches=config.minibatches,
  )
