"""The PPO agent: epochs of minibatches over each batch of unrolls."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from seedrl_jax import types
from seedrl_jax.agents import (
  base,
  normalization,
  optimizers,
  reward_config,
  sgd,
)
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.ppo import loss as loss_lib
from seedrl_jax.networks import distributions, heads, health, pixels, popart
from seedrl_jax.networks import network as network_lib


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # [B, *shape]
  log_prob: jax.Array  # float32 [B], of the behaviour policy


class Core(NamedTuple):
  """The network's core state, and the discounted return so far."""

  network: types.Nest
  discounted_return: jax.Array  # float32 [B]


class ActingParams(NamedTuple):
  """The network's parameters, and what its observations are normalised by."""

  network: base.Params
  observations: normalization.ObservationStatistics


class State(NamedTuple):
  """What training changes."""

  params: base.Params
  opt_state: optax.OptState
  observations: normalization.ObservationStatistics
  returns: normalization.Statistics  # of discounted returns so far
  # Named by `distributions.scale`; () if actions are not scaled. So checkpoints
  # do not load if their policy has another unit, nor older ones without it.
  action_scale: types.Nest


class Data(NamedTuple):
  """Pieces of a batch, of length L, from which minibatches are drawn."""

  inputs: types.AgentInput  # [N, L, ...]
  samples: loss_lib.Samples  # [N, L]
  core: types.Nest  # [N, ...]


class _Training(NamedTuple):
  """What a minibatch changes."""

  params: base.Params
  opt_state: optax.OptState
  stopped: jax.Array  # bool, whether the policy has moved far enough


def make_agent(config: types.Config, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; raises ValueError if a config value does not fit."""
  sgd.refuse_pieces(config)
  network = config.network
  distribution = distributions.make(
    env_spec.action, network.min_deviation, network.first_deviation
  )
  module = heads.ActorCritic(
    network_lib.make_network(network, env_spec),
    distribution,
    network.separate_baseline,
    network.free_deviation,
    reward_config.uses_popart(config),
  )
  ppo = PPO(config, env_spec, distribution, module)
  return base.Agent(
    init=ppo.init,
    acting_params=lambda state: ActingParams(state.params, state.observations),
    initial_core=lambda batch: Core(
      module.initial_core(batch), jnp.zeros(batch)
    ),
    act=ppo.act,
    update=ppo.update,
    updates_per_batch=config.epochs * config.minibatches,
    measure=ppo.measure,
    check_share=ppo.check_share,
  )


@dataclasses.dataclass(frozen=True)
class PPO:
  """The agent's functions; see `base.Agent`."""

  config: types.Config
  env_spec: types.EnvSpec
  distribution: distributions.Distribution
  module: heads.ActorCritic

  def init(self, key: jax.Array) -> State:
    init_params = network_lib.make_init(self.module, self.module, self.env_spec)
    params = init_params(key)
    observations: normalization.ObservationStatistics = ()
    if self.config.normalization.observations:
      spec = self.env_spec.observation
      observations = normalization.initial_observations(spec)
    action = self.env_spec.action
    action_scale: types.Nest = ()
    if distributions.is_scaled(action):
      middle, half = (x.tolist() for x in distributions.scale(action))
      # The value means nothing.
      action_scale = {f'middle {middle}, half {half}': jnp.zeros(())}
    opt_state = optimizers.make(self.config).init(params)
    returns = normalization.initial()
    return State(params, opt_state, observations, returns, action_scale)

  def check_share(self, unrolls: int) -> None:
    whole = bool(jax.tree.leaves(self.module.initial_core(1)))
    transitions = unrolls * self.config.unroll_length
    count = self.config.minibatches
    sgd.check_divides(unrolls if whole else transitions, count)
    normalizes = self.config.loss.normalize_advantages == 'minibatch'
    if normalizes and transitions == count:
      raise ValueError(
        f'--config.minibatches={count}: normalised alone, an advantage is 0; '
        'give fewer, or --config.loss.normalize_advantages=batch.'
      )

  def act(
    self,
    params: ActingParams,
    key: jax.Array,
    step: types.AgentInput,
    core: Core,
    env_id: jax.Array,
  ) -> tuple[AgentOutput, Core]:
    act = base.make_act(self.module, self._choose)
    step = self._normalize(params.observations, step)
    output, network = act(params.network, key, step, core.network, env_id)
    discounted_return = normalization.next_return(
      core.discounted_return, step.reward, step.first, self.config.loss.discount
    )
    return output, Core(network, discounted_return)

  def measure(
    self, params: ActingParams, inputs: types.AgentInput, core: Core
  ) -> dict[str, jax.Array]:
    inputs = self._normalize(params.observations, inputs)
    measure = health.make_measure(self.module)
    return measure(params.network, inputs, core.network)

  def _choose(
    self, key: jax.Array, outputs: heads.ActorCriticOutput, env_id: jax.Array
  ) -> AgentOutput:
    """Samples; evaluation environments take the policy's mode."""
    sampled = self.distribution.sample(key, outputs.policy)
    mode = self.distribution.mode(outputs.policy)
    action = base.with_evaluation(sampled, mode, self.env_spec, env_id)
    return AgentOutput(
      action, self.distribution.log_prob(outputs.policy, action)
    )

  def _normalize(
    self,
    statistics: normalization.ObservationStatistics,
    inputs: types.AgentInput,
  ) -> types.AgentInput:
    if not self.config.normalization.observations:
      return inputs
    clip = self.config.normalization.observation_clip
    return inputs._replace(
      observation=normalization.normalize_observation(
        statistics, inputs.observation, clip
      )
    )

  def update(
    self, state: State, batch: types.Batch, key: jax.Array, progress: jax.Array
  ) -> tuple[State, base.UpdateOutput]:
    steps, core = batch.unroll.steps, batch.unroll.initial_core
    # Before it is used: a first batch would train on rewards of any size.
    returns = normalization.merge_returns(
      state.returns, steps, core.discounted_return, self.config.loss.discount
    )
    old_params, data, metrics = self.prepare(
      state, returns, steps, core.network
    )
    rate = optimizers.learning_rate(self.config)(progress)
    training, output = sgd.run_minibatches(
      functools.partial(self._step, data, rate),
      _Training(old_params, state.opt_state, jnp.zeros((), bool)),
      key,
      size=len(data.samples.weight),
      epochs=self.config.epochs,
      minibatches=self.config.minibatches,
    )
    # The old statistics normalise the whole batch, so that ratios start at 1.
    moments = self.module.network.pixel_moments(steps.observation)
    params = pixels.absorb(training.params, base.mean_over_devices(moments))
    observations = state.observations
    if observations:
      observations = normalization.merge_observations(observations, steps)
    change = jax.tree.map(jnp.subtract, training.params, old_params)
    metrics |= {**output.metrics, 'learning_rate': rate}
    metrics |= optimizers.update_metrics(change, old_params)
    # An infinite observation spoils the statistics, which only the next
    # updates would show.
    checked = jax.tree.leaves((metrics, observations, returns))
    finite = jnp.stack([jnp.isfinite(x).all() for x in checked]).all()
    new_state = State(
      params, training.opt_state, observations, returns, state.action_scale
    )
    return new_state, base.UpdateOutput(metrics, finite & output.finite)

  def prepare(
    self,
    state: State,
    returns: normalization.Statistics,
    steps: types.Steps,
    core: types.Nest,
  ) -> tuple[base.Params, Data, dict[str, jax.Array]]:
    """Returns parameters, a batch's pieces and metrics before its minibatches.

    PopArt's statistics take the batch's returns once, and before it is used.
    """
    config, params = self.config, state.params
    inputs = self._normalize(state.observations, types.agent_input(steps))
    outputs, _ = self.module.apply({'params': params}, inputs, core)
    inputs, acted, value = jax.tree.map(
      lambda x: x[:-1], (inputs, steps.agent_output, outputs.baseline)
    )
    transitions = transitions_lib.from_steps(
      steps, discount=config.loss.discount
    )
    if config.normalization.rewards:
      scaled = transitions.reward / normalization.deviation(returns)
      clip = config.normalization.reward_clip
      reward = normalization.clipped(scaled, clip)
      transitions = transitions._replace(reward=reward)
    advantage = loss_lib.advantages(
      transitions, outputs.baseline, config.loss.lambda_
    )
    target = value + advantage
    share = base.mean_over_devices(
      jnp.mean(transitions.valid, dtype=jnp.float32)
    )
    weight = transitions.valid / jnp.maximum(share, 1e-8)
    if self.module.popart:
      task = self.module.network.task(inputs)
      batch_returns = popart.batch_moments(
        popart.moments(params, task), target, weight
      )
      params = popart.absorb(params, base.mean_over_devices(batch_returns))
      advantage /= popart.moments(params, task).deviation
    if config.loss.normalize_advantages == 'batch':
      advantage = loss_lib.normalized(advantage, weight)
    samples = loss_lib.Samples(
      weight, acted.action, acted.log_prob, value, target, advantage
    )
    metrics = loss_lib.value_metrics(samples)
    metrics['masked_share'] = 1.0 - share
    cut = functools.partial(_cut, whole=bool(jax.tree.leaves(core)))
    inputs, samples = jax.tree.map(cut, (inputs, samples))
    return params, Data(inputs, samples, core), metrics

  def _step(
    self, data: Data, rate: jax.Array, old: _Training, rows: jax.Array
  ) -> tuple[_Training, base.UpdateOutput]:
    data = jax.tree.map(lambda x: x[rows], data)
    if self.config.loss.normalize_advantages == 'minibatch':
      samples = data.samples
      advantage = loss_lib.normalized(samples.advantage, samples.weight)
      data = data._replace(samples=samples._replace(advantage=advantage))
    gradient = jax.value_and_grad(self.loss, has_aux=True)
    (loss, metrics), grads = base.mean_over_devices(gradient(old.params, data))
    params, opt_state, scalars = optimizers.apply_gradient(
      optimizers.make(self.config),
      rate,
      grads,
      old,
      self.config.optimizer.clip_norm,
    )
    scalars['total'] = loss
    stopped = old.stopped
    if target := self.config.loss.target_kl:
      stopped |= metrics['kl'] > target
      params, opt_state = jax.tree.map(
        functools.partial(jnp.where, stopped),
        (old.params, old.opt_state),
        (params, opt_state),
      )
    metrics |= {'skipped_share': stopped.astype(jnp.float32), **scalars}
    return _Training(params, opt_state, stopped), base.UpdateOutput(
      metrics, optimizers.all_finite(scalars)
    )

  def loss(
    self, params: base.Params, data: Data
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    # Time leads for the network.
    inputs, samples = jax.tree.map(
      lambda x: jnp.swapaxes(x, 0, 1), (data.inputs, data.samples)
    )
    outputs, _ = self.module.apply({'params': params}, inputs, data.core)
    scale: jax.Array | float = 1.0
    if self.module.popart:
      task = self.module.network.task(inputs)
      scale = popart.moments(params, task).deviation
    return loss_lib.ppo_loss(
      self.config.loss, self.distribution, outputs, samples, scale
    )


def _cut(x: jax.Array, whole: bool) -> jax.Array:
  """Cuts `[T, B, ...]` to unrolls `[B, T, ...]` or steps `[T * B, 1, ...]`."""
  if not whole:
    x = x.reshape((1, -1, *x.shape[2:]))
  return jnp.swapaxes(x, 0, 1)
