"""Tests the flat gradient step against the optimisers on nests."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.agents import base, sgd
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import dqn_cartpole
from seedrl_jax.envs import factory
from seedrl_jax.workers import flat
from tests import runs

OPTIMIZERS = [
  {'name': 'adam'},
  {'name': 'radam'},
  {'name': 'rmsprop', 'rmsprop_momentum': 0.5},
  {'name': 'rmsprop', 'rmsprop_centered': True},
  {'name': 'adagrad'},
  {'name': 'sgd', 'sgd_momentum': 0.5, 'clip_norm': 0.1},
]


def trained_state(make=base_config.get_config, num_updates=2, **optimizer):
  """Returns an agent, and its state after updates by random gradients."""
  config = runs.tiny(make)
  config.optimizer.update(optimizer)
  agent = base.load_agent(config, factory.make_env_spec(config))
  state = agent.init(jax.random.PRNGKey(0))
  rng = np.random.default_rng(0)
  for _ in range(num_updates):
    gradient = jax.tree.map(
      lambda x: jnp.float32(rng.normal(size=x.shape)), state.params
    )
    updates, opt_state = agent.trainer.optimizer.update(
      gradient, state.opt_state, state.params
    )
    params = jax.tree.map(jnp.add, state.params, updates)
    state = state._replace(params=params, opt_state=opt_state)
  return agent, state


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
@pytest.mark.parametrize(
  'make', [base_config.get_config, dqn_cartpole.get_config]
)
def test_state_survives_flattening(make, optimizer):
  agent, state = trained_state(make, **optimizer)
  trainer = flat.FlatTrainer(agent)
  vectors = trainer.flatten(state)
  actual = trainer.unflatten(vectors, step=7, progress=0.5)
  chex.assert_trees_all_equal(actual.params, state.params)
  chex.assert_trees_all_equal(actual.target_params, state.target_params)
  chex.assert_trees_all_equal(actual.opt_state, state.opt_state)
  assert actual.step == 7
  assert (
    jax.tree.leaves(actual.progress) == [0.5] * agent.trainer.keeps_progress
  )


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_flat_steps_are_those_of_the_optimizer(optimizer):
  agent, state = trained_state(num_updates=1, **optimizer)
  trainer = flat.FlatTrainer(agent)
  params, _, leaves = trainer.flatten(state)
  rng = np.random.default_rng(1)
  for _ in range(3):
    gradient = rng.normal(size=trainer.size).astype(np.float32)
    change, changes = trainer.step(params, leaves, gradient, 0.5)
    params = params + change
    leaves = [x + y for x, y in zip(leaves, changes, strict=True)]
    nested = trainer.state(jnp.array(gradient), jnp.zeros(0), 0.0).params
    updates, opt_state = agent.trainer.optimizer.update(
      nested, state.opt_state, state.params
    )
    new = jax.tree.map(lambda x, y: x + 0.5 * y, state.params, updates)
    state = state._replace(params=new, opt_state=opt_state)
  actual = trainer.unflatten(flat.Vectors(params, params[:0], leaves), 0, 0.0)
  chex.assert_trees_all_close(actual.params, state.params, atol=1e-6)
  chex.assert_trees_all_close(actual.opt_state, state.opt_state, atol=1e-5)


def test_acting_parameters_are_the_agent_s():
  agent, state = trained_state(dqn_cartpole.get_config)
  trainer = flat.FlatTrainer(agent)
  params, *_ = trainer.flatten(state)
  chex.assert_trees_all_close(
    trainer.acting_params(params, np.float32(0.25)),
    agent.acting_params(state._replace(progress=jnp.float32(0.25))),
  )
  assert isinstance(trainer.trainer, sgd.Trainer)
