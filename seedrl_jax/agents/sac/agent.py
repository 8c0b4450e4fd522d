"""The SAC agent: a squashed Gaussian policy, two critics and a temperature.

One optimiser step trains them all, each critic and the policy by a gradient at
the parameters before the step, as in the authors' code.
"""

import functools
import operator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax

from seedrl_jax import types
from seedrl_jax.agents import base, optimizers, sgd
from seedrl_jax.agents.sac import loss as loss_lib
from seedrl_jax.networks import (
  coding,
  distributions,
  heads,
  health,
  observations,
  torsos,
)
from seedrl_jax.networks import network as network_lib

_NUM_CRITICS = 2


class AgentOutput(NamedTuple):
  """What acting records for learning."""

  action: jax.Array  # float32 [B, ...], within the environment's bounds


class ActingParams(NamedTuple):
  """What inference needs."""

  policy: base.Params
  step: jax.Array  # int32, updates so far


class Params(NamedTuple):
  """What the optimiser trains."""

  policy: base.Params
  critics: base.Params  # leaves [2, ...]
  log_temperature: jax.Array  # float32 scalar


class State(NamedTuple):
  """What training changes."""

  params: Params
  target_critics: base.Params
  opt_state: optax.OptState
  step: jax.Array  # int32, updates so far


class Policy(nn.Module):
  """Parameters of the distribution of actions."""

  network: network_lib.Network
  num_params: int

  @nn.compact
  def __call__(
    self, inputs: types.AgentInput, core: network_lib.CoreState
  ) -> tuple[jax.Array, network_lib.CoreState]:
    """Maps `[T, B, ...]` and a core to `[T, B, P]` and the next core."""
    features, core = self.network(inputs, core)
    return heads.PolicyHead(self.num_params, name='policy')(features), core


class Critic(nn.Module):
  """The value of an action, from all numbers of an observation and its own."""

  config: ml_collections.FrozenConfigDict  # config.network
  leaves: tuple[observations.Leaf, ...]  # of the observation, in order

  @nn.compact
  def __call__(self, observation: types.Nest, action: jax.Array) -> jax.Array:
    """Maps `[T, B, ...]` and actions `[T, B, A]` in [-1, 1] to `[T, B]`."""
    length, batch = action.shape[:2]
    dtype = jnp.dtype(self.config.compute_dtype)
    arrays = [
      x.reshape((length * batch, *x.shape[2:]))
      for x in jax.tree.leaves((observation, action))
    ]
    for i, leaf in enumerate(self.leaves):
      if leaf.is_coded:
        arrays[i] = coding.Coded(leaf, dtype, name=f'coded_{i}')(arrays[i])
    vectors = [coding.to_features(x, dtype) for x in arrays]
    x = jnp.concatenate([x.reshape((len(x), -1)) for x in vectors], axis=-1)
    features = torsos.make_torso(self.config, x.shape[1:], name='torso')(x)
    return heads.BaselineHead(name='q')(features).reshape((length, batch))


def make_agent(config: types.Config, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; raises ValueError if a config value does not fit."""
  _check(config, env_spec)
  network = network_lib.make_network(config.network, env_spec)
  learner = Learner(config, env_spec, network)
  return base.Agent(
    init=learner.init,
    acting_params=lambda state: ActingParams(state.params.policy, state.step),
    initial_core=network.initial_core,
    act=learner.act,
    update=learner.update,
    updates_per_batch=config.updates_per_call,
    measure=learner.measure,
    check_share=functools.partial(
      sgd.check_divides, count=config.updates_per_call, key='updates_per_call'
    ),
  )


def _check(config: types.Config, env_spec: types.EnvSpec) -> None:
  specs = jax.tree.leaves(env_spec.observation, is_leaf=types.is_spec)
  if any(len(spec.shape) > 1 for spec in specs):
    raise ValueError(
      f'--config.agent=sac: {env_spec.env_id} has images, and its critics '
      'take vectors only.'
    )
  action = env_spec.action
  low, high = (np.array(x, 'f4') for x in (action.minimum, action.maximum))
  if not (np.isfinite(high - low) & (high > low)).all():
    raise ValueError(
      f'--config.agent=sac: the bounds of an action of {env_spec.env_id} are '
      'equal or infinite, so tanh cannot be scaled to them; take ppo or wrap '
      'it.'
    )
  fixed = {
    'network.lstm_size': 0,
    'network.frame_stack': 1,
    'network.use_previous_action': False,
    'learner.micro_batches': 1,
  }
  reason = 'SAC sees single observations and trains on whole minibatches'
  base.check_fixed(config, fixed, reason)


class Learner:
  """Acts and learns; see `base.Agent`."""

  def __init__(
    self,
    config: types.Config,
    env_spec: types.EnvSpec,
    network: network_lib.Network,
  ):
    self._config = config
    self._env_spec = env_spec
    self._distribution = distributions.TanhGaussian(env_spec.action)
    self._policy = Policy(network, self._distribution.num_params)
    self._critic = Critic(network.config, network.leaves)
    network_params = operator.attrgetter('policy')
    self.act = base.make_act(self._policy, self._choose, network_params)
    self.measure = health.make_measure(self._policy, network_params)
    self._init_policy = network_lib.make_init(self._policy, network, env_spec)
    self._optimizer = optimizers.make(config)
    self._learning_rate = optimizers.learning_rate(config)
    self._middle, self._half = distributions.scale(env_spec.action)
    self._target_entropy = config.loss.target_entropy
    if self._target_entropy is None:
      self._target_entropy = -float(self._half.size)

  def init(self, key: jax.Array) -> State:
    policy_key, critic_key = jax.random.split(key)
    example = network_lib.dummy_inputs(self._env_spec)
    action = self._to_unit(example.previous_action)
    # Not by vmap: QR factorisations of several matrices, of which orthogonal
    # weights are made, wait for each other forever on XLA's threads for CPUs.
    critics = [
      self._critic.init(key, example.observation, action)['params']
      for key in jax.random.split(critic_key, _NUM_CRITICS)
    ]
    critics = jax.tree.map(lambda *leaves: jnp.stack(leaves), *critics)
    params = Params(
      self._init_policy(policy_key),
      critics,
      jnp.log(jnp.float32(self._config.loss.temperature)),
    )
    return State(
      params, critics, self._optimizer.init(params), jnp.zeros((), jnp.int32)
    )

  def _to_unit(self, action: jax.Array) -> jax.Array:
    """Flattens actions `[T, B, ...]` and scales their bounds to -1 and 1."""
    flat = action.reshape((*action.shape[:2], -1))
    return (flat - self._middle) / self._half

  def _choose(
    self,
    params: ActingParams,
    key: jax.Array,
    outputs: jax.Array,
    env_id: jax.Array,
  ) -> AgentOutput:
    """Samples from the policy, before the first update uniformly.

    Evaluation environments take the mean's tanh.
    """
    sampled = self._distribution.sample(key, outputs)
    shape = len(outputs), self._half.size
    unit = jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    uniform = (self._middle + self._half * unit).reshape(sampled.shape)
    sampled = jnp.where(params.step == 0, uniform, sampled)
    mode = self._distribution.mode(outputs)
    action = base.with_evaluation(sampled, mode, self._env_spec, env_id)
    return AgentOutput(action)

  def update(
    self, state: State, batch: types.Batch, key: jax.Array, progress: jax.Array
  ) -> tuple[State, base.UpdateOutput]:
    """Makes `updates_per_call` updates; metrics are their means."""
    count = self._config.updates_per_call

    def step(
      state: State, steps: types.Steps
    ) -> tuple[State, tuple[dict[str, jax.Array], jax.Array]]:
      step_key = jax.random.fold_in(key, state.step)
      return self._step(state, steps, step_key, progress)

    def split(x: jax.Array) -> jax.Array:
      # Demonstrations come last in a batch: each part gets its share of them.
      return jnp.moveaxis(
        x.reshape((x.shape[0], -1, count, *x.shape[2:])), 2, 0
      )

    state, (metrics, finite) = jax.lax.scan(
      step, state, jax.tree.map(split, batch.unroll.steps)
    )
    metrics = jax.tree.map(jnp.mean, metrics)
    return state, base.UpdateOutput(metrics, finite.all())

  def _step(
    self, state: State, steps: types.Steps, key: jax.Array, progress: jax.Array
  ) -> tuple[State, tuple[dict[str, jax.Array], jax.Array]]:
    """Makes one update on steps `[T + 1, B]`; returns metrics, if finite."""
    gradient = jax.value_and_grad(self.loss, has_aux=True)
    (loss, metrics), grads = base.mean_over_devices(
      gradient(state.params, state.target_critics, steps, key)
    )
    loss, grads = sgd.of_valid(1.0 - metrics['masked_share'], (loss, grads))
    rate = self._learning_rate(progress)
    factor = self._config.optimizer.policy_factor

    def scale(updates: Params) -> Params:
      policy = optax.tree.scale(factor, updates.policy)
      return updates._replace(policy=policy)

    params, opt_state, scalars = optimizers.apply_gradient(
      self._optimizer,
      rate,
      grads,
      state,
      self._config.optimizer.clip_norm,
      scale,
    )
    scalars |= {'total': loss, 'learning_rate': rate}
    targets = optax.incremental_update(
      params.critics,
      state.target_critics,
      self._config.loss.target_update_rate,
    )
    new_state = State(params, targets, opt_state, state.step + 1)
    return new_state, ({**metrics, **scalars}, optimizers.all_finite(scalars))

  def loss(
    self,
    params: Params,
    target_critics: base.Params,
    steps: types.Steps,
    key: jax.Array,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the loss of steps `[T + 1, B]`, and metrics."""
    key, next_key = jax.random.split(key)
    inputs = types.agent_input(steps)
    now = jax.tree.map(lambda x: x[:-1], inputs)
    later = jax.tree.map(lambda x: x[1:], inputs)
    action, log_prob = self._sample(params.policy, now, key)
    next_action, next_log_prob = self._sample(
      jax.lax.stop_gradient(params.policy), later, next_key
    )
    fixed = jax.lax.stop_gradient(params.critics)
    past_action = self._to_unit(steps.agent_output.action[:-1])
    values = loss_lib.Values(
      q=self._values(params.critics, now, past_action),
      policy_q=self._values(fixed, now, action),
      log_prob=log_prob,
      next_q=self._values(target_critics, later, next_action),
      next_log_prob=next_log_prob,
    )
    return loss_lib.sac_loss(
      self._config.loss,
      steps,
      values,
      params.log_temperature,
      self._target_entropy,
    )

  def _sample(
    self, policy: base.Params, inputs: types.AgentInput, key: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns actions `[T, B, A]` scaled to [-1, 1], and log-densities."""
    core = self._policy.network.initial_core(inputs.first.shape[1])
    outputs, _ = self._policy.apply({'params': policy}, inputs, core)
    action, log_prob = self._distribution.sample_and_log_prob(key, outputs)
    # The density of the scaled action, which has other units.
    log_prob += np.log(self._half).sum()
    return self._to_unit(action), log_prob

  def _values(
    self, critics: base.Params, inputs: types.AgentInput, action: jax.Array
  ) -> jax.Array:
    """Returns both critics' values, float32 `[2, T, B]`."""

    def value(critic: base.Params) -> Any:
      variables = {'params': critic}
      return self._critic.apply(variables, inputs.observation, action)

    return jax.vmap(value)(critics)
