"""Tests PQN: targets and loss against the definition, updates, acting."""

import functools

import chex
import jax
import numpy as np
import optax
import pytest
from absl.testing import parameterized

from seedrl_jax import types
from seedrl_jax.agents import base, optimizers, transitions
from seedrl_jax.agents.pqn import agent as agent_lib
from seedrl_jax.agents.pqn import loss as loss_lib
from seedrl_jax.configs import pqn_cartpole
from seedrl_jax.learner import update as update_lib
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib
from tests.agents import pqn_reference, sequences

_LENGTH, _BATCH, _ACTIONS = 7, 8, 3
_KEY = jax.random.PRNGKey(0)
_ENV_SPEC = types.EnvSpec(
  types.StreamSpec(
    observation=types.ArraySpec((2,), np.dtype('float32')),
    action=types.discrete(_ACTIONS),
    action_repeat=1,
    name='toy',
  ),
  num_envs=6,
  num_eval_envs=2,
)


def _config(**changes):
  config = pqn_cartpole.get_config()
  config.unroll_length, config.batch_size = _LENGTH, _BATCH
  config.epochs, config.minibatches = 2, 1
  config.network.hidden_sizes = (8,)
  config.network.lstm_size = 4
  config.optimizer.learning_rate = 0.01
  config.update_from_flattened_dict(changes)
  return config


def _sequence(seed=0):
  """Returns action values `[T + 1, B, A]` and steps that were acted."""
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, _LENGTH, _BATCH, _ACTIONS)
  q_values = rng.normal(size=(_LENGTH + 1, _BATCH, _ACTIONS)) * 3
  acted = agent_lib.AgentOutput(steps.agent_output.action)
  return q_values.astype(np.float32), steps._replace(agent_output=acted)


def _gradient(config, q_values, steps, seed=1):
  """Returns the loss and its output, and the gradient, with random targets."""
  rng = np.random.default_rng(seed)
  target = rng.normal(size=steps.reward.shape).astype(np.float32)
  steps = steps._replace(
    agent_output=agent_lib.Sample(steps.agent_output.action, target)
  )
  loss = functools.partial(loss_lib.q_loss, steps=steps)
  gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
  return target, *jax.device_get(gradient(q_values))


@pytest.mark.parametrize(
  'changes',
  [
    {'lambda_': 0.0},
    {'lambda_': 0.65},
    {'lambda_': 1.0, 'discount': 0.8},
    {'lambda_': 0.9, 'reward_clip': 1.0, 'reward_scale': 0.3},
  ],
)
def test_equals_a_mixture_of_n_step_returns(changes):
  config = _config()
  config.loss.update({'reward_scale': 1.0, **changes})
  q_values, steps = _sequence()
  expected, valid = pqn_reference.targets(config.loss, q_values, steps)
  targets = jax.jit(functools.partial(loss_lib.targets, config.loss))
  np.testing.assert_allclose(
    np.asarray(targets(q_values, steps))[valid],
    expected[valid],
    rtol=1e-5,
    atol=1e-5,
  )
  target, (loss, output), _ = _gradient(config, q_values, steps)
  metrics = output.metrics
  np.testing.assert_allclose(
    loss,
    pqn_reference.loss(config.loss, q_values, target[:-1], steps),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    metrics['q_target'], target[:-1][valid].mean(), rtol=1e-5
  )
  np.testing.assert_allclose(metrics['masked_share'], 1 - valid.mean(), 1e-5)


class PureFunctionTest(parameterized.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(
    # One-step Q-learning: each reward plus half the next value.
    (0.0, [1 + 2, 1 + 4, 7 + 15], [1 + 2, 1, 7 + 15]),
    # Monte Carlo returns; a truncated episode's value stands for its rest.
    (1.0, [1 + 0.5 * 5, 1 + 4, 7 + 15], [1 + 0.5, 1, 7 + 15]),
    (0.5, [1 + 0.5 * 4.5, 1 + 4, 7 + 15], [1 + 0.5 * 2.5, 1, 7 + 15]),
  )
  def test_targets_of_two_episodes(self, lambda_, truncated, terminated):
    # MID, MID, LAST, FIRST, MID.
    trajectory = transitions.Transitions(
      valid=np.array([[1, 1], [1, 1], [0, 0], [1, 1]], bool),
      reward=np.array([[1, 1], [1, 1], [0, 0], [7, 7]], np.float32),
      discount=np.array([[0.5, 0.5], [0.5, 0], [0, 0], [0.5] * 2], np.float32),
    )
    value = np.array([[4, 4], [8, 8], [20, 20], [30, 30]], np.float32)
    actual = self.variant(loss_lib.lambda_returns)(trajectory, value, lambda_)
    expected = np.array([truncated, terminated]).T
    np.testing.assert_allclose(actual[np.array([0, 1, 3])], expected)


def _batch(agent):
  rng = np.random.default_rng(0)
  core = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32),
    agent.initial_core(_BATCH),
  )
  return sequences.batch_of(_sequence()[1], core)


def _updated(config, progress=0.0):
  """Returns the agent's states after and before an update."""
  agent = base.load_agent(config, _ENV_SPEC)
  updater = update_lib.Updater(agent, jax.devices()[:1])
  initial = update_lib.initial_state(agent, _KEY)
  batch = updater.shard([_batch(agent)])
  state, *_ = updater(updater.replicate(initial), batch, progress)
  return update_lib.host_state(state).agent, initial.agent


def test_targets_are_fixed_before_the_first_epoch():
  config = _config()
  state, initial = _updated(config)
  agent = base.load_agent(config, _ENV_SPEC)
  network = network_lib.make_network(config.network, _ENV_SPEC)
  module = heads.QNetwork(network, 0, False)
  loss = agent_lib.make_loss(module)
  batch, optimizer = _batch(agent), optimizers.make(config)
  unroll = batch.unroll
  q_values, _ = jax.jit(module.apply)(
    {'params': initial.params},
    types.agent_input(unroll.steps),
    unroll.initial_core,
  )
  config.minibatches = 4
  with_targets = functools.partial(agent_lib.with_targets, config, module)
  batch = jax.jit(with_targets)(initial.params, batch)
  np.testing.assert_allclose(
    batch.unroll.steps.agent_output.target[:-1],
    loss_lib.targets(config.loss, q_values, unroll.steps),
    rtol=1e-5,
    atol=1e-6,
  )
  params, opt_state = initial.params, initial.opt_state
  gradient_of, step = map(
    jax.jit, (jax.grad(loss, has_aux=True), optimizer.update)
  )
  for _ in range(2):
    gradient, output = gradient_of(params, (), batch, _KEY)
    gradient = optax.tree.scale(1.0 / output.valid_share, gradient)
    updates, opt_state = step(gradient, opt_state)
    params = optax.apply_updates(params, optax.tree.scale(0.01, updates))
  chex.assert_trees_all_close(state.params, params, rtol=1e-5, atol=1e-6)
  assert state.step == agent.updates_per_batch == 2


def test_epsilon_follows_the_progress():
  config = _config(**{
    'exploration.final_epsilon': 0.2,
    'exploration.decay_share': 0.5,
  })
  agent = base.load_agent(config, _ENV_SPEC)
  for progress, expected in ((0.25, 0.6), (0.9, 0.2)):
    state, initial = _updated(config, progress=progress)
    epsilon = agent.acting_params(state).epsilon
    np.testing.assert_allclose(epsilon, expected, rtol=1e-5)
  assert agent.acting_params(initial).epsilon == 1.0


def test_refuses_pieces_of_minibatches():
  with pytest.raises(ValueError, match=r'micro_batches=2: .* give 1'):
    base.load_agent(_config(**{'learner.micro_batches': 2}), _ENV_SPEC)
