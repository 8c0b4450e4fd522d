"""Tests the loss of the REINFORCE agent, and that it learns."""

import jax
import jax.numpy as jnp
import numpy as np

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.agents import base
from tests.agents import reinforce, sequences, updates

_FIRST, _MID, _LAST = types.StepType


def _steps(step_type, reward):
  step_type = np.array(step_type, np.uint8)[:, None]
  zeros = np.zeros_like(step_type, np.int32)
  return types.Steps(
    observation=np.zeros((*step_type.shape, 1), np.float32),
    reward=np.array(reward, np.float32)[:, None],
    discount=(step_type != _LAST).astype(np.float32),
    step_type=step_type,
    previous_action=zeros,
    agent_output=reinforce.AgentOutput(zeros),
    parameter_version=zeros,
  )


def test_returns_stop_at_the_end_of_the_episode():
  steps = _steps(
    [_FIRST, _MID, _LAST, _FIRST, _LAST, _FIRST, _MID],
    [0.0, 1.0, 2.0, 0.0, 4.0, 0.0, 8.0],
  )
  returns, ended = jax.device_get(jax.jit(reinforce.returns_to_go)(steps, 0.5))
  np.testing.assert_array_equal(ended[:, 0], [1, 1, 0, 1, 0, 0])
  np.testing.assert_allclose(returns[:, 0][ended[:, 0]], [2.0, 2.0, 4.0])


def test_loss_by_hand():
  config = base_config.get_config().loss
  config.discount, config.entropy_cost, config.baseline_cost = 0.5, 0.1, 0.5
  steps = _steps([_FIRST, _MID, _LAST, _FIRST], [0.0, 1.0, 2.0, 0.0])
  logits, values = np.zeros((4, 1, 4)), np.ones((4, 1))
  value = jax.jit(lambda *x: reinforce.reinforce_loss(*x, config))(
    logits, values, steps
  )
  # Both transitions return 2, so their errors are 1; the third is masked.
  each = np.log(4) + 0.25 - 0.1 * np.log(4)
  np.testing.assert_allclose(value, 2 * each / 3, rtol=1e-6)


def test_learns_a_bandit():
  env_spec = types.EnvSpec(
    'bandit',
    types.ArraySpec((1,), np.dtype('float32')),
    types.discrete(2),
    1,
    64,
    0,
  )
  config = base_config.get_config()
  config.agent = 'tests.agents.reinforce'
  config.network.hidden_sizes = (4,)
  config.optimizer.learning_rate = 0.05
  agent = base.load_agent(config, env_spec)
  state, ids = jax.jit(agent.init)(jax.random.key(0)), jnp.arange(64)
  ones = jnp.ones((64, 1))
  first = types.AgentInput(ones, ids * 0.0, ids * 0, ids == ids)

  @jax.jit
  def update(state, key):
    params = agent.acting_params(state)
    acted, _ = agent.act(params, key, first, agent.initial_core(64), ids)
    # One-step episodes; action 1 is rewarded.
    reward = jnp.stack([jnp.zeros(64), acted.action.astype(jnp.float32)])
    step_type = jnp.stack([jnp.full(64, _FIRST), jnp.full(64, _LAST)])
    zeros = jnp.zeros((2, 64), jnp.int32)
    outputs = reinforce.AgentOutput(zeros.at[0].set(acted.action))
    steps = types.Steps(
      jnp.stack([ones, ones]), reward, reward, step_type, zeros, outputs, zeros
    )
    batch = sequences.batch_of(steps, agent.initial_core(64))
    state, _ = updates.run(agent, state, batch, key)
    return state, jnp.mean(reward[1])

  paid = []
  for key in jax.random.split(jax.random.key(1), 60):
    state, mean = update(state, key)
    paid.append(float(mean))
  assert paid[0] < 0.8
  assert np.mean(paid[-5:]) > 0.95
