"""Tests that agents of other kinds train without changes elsewhere."""

import jax
import numpy as np
import pytest

from seedrl_jax.configs import base as base_config
from tests import runs
from tests.agents import continuous
from tests.agents.continuous import config as continuous_config
from tests.agents.epochs import keys as epochs_keys


def _config(set_agent, **values):
  config = base_config.get_config(set_agent)
  config.network.hidden_sizes = (16,)
  runs.set_keys(
    config,
    **{
      'env.num_envs': 8,
      'env.batch_size': 8,
      'num_eval_envs': 0,
      'unroll_length': 8,
      'batch_size': 8,
      'topology.max_devices': 1,
      'log.writers': ('csv',),
      'replay.backend': 'embedded',
      'deterministic': True,
      'log.every_seconds': 0.01,
      **values,
    },
  )
  return config


def _returns(workdir):
  returns = np.array(runs.column(workdir, 'rollout/return'))
  return returns[np.isfinite(returns)]


def test_continuous_actions_and_two_optimizers(tmp_path):
  config = _config(
    continuous_config.set_defaults,
    **{
      'env.factory': 'tests.agents.continuous:reach',
      'network.use_previous_action': True,
      'total_env_frames': 40_000,
    },
  )
  run = runs.Run(config, tmp_path)
  first = run.initial_state.agent
  summary = run.train()
  # Constant actions of 0 are 0.8 off two goals; random ones are worse.
  assert _returns(tmp_path)[0] < 2.5
  assert summary['mean_return_100'] > 5.0
  last = run.system.parts.learner.state().agent
  for name in ('actor', 'critic'):
    before, after = (getattr(state, name) for state in (first, last))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), before, after)
    assert min(jax.tree.leaves(moved)) > 0.0
    count = getattr(last, f'{name}_opt')[0].count
    assert count == summary['updates'] > 100
  # Exploration followed the run's progress into the acting parameters.
  device = run.system.parts.plan.topology.inference[0]
  _, published = run.system.parts.publisher.latest(device)
  assert isinstance(published, continuous.Params)
  assert published.deviation == pytest.approx(0.1, abs=0.01)


def test_epochs_over_minibatches(tmp_path):
  config = _config(
    epochs_keys.set_defaults,
    **{
      'env.factory': 'tests.evaluation.evaluation_runs:chooser',
      'optimizer.learning_rate': 1e-2,
      'total_env_frames': 6_000,
    },
  )
  run = runs.Run(config, tmp_path)
  summary = run.train()
  assert _returns(tmp_path)[0] < 2.5
  # One of three actions is right, in each of five steps.
  assert summary['mean_return_100'] > 4.0
  parts = run.system.parts
  state = parts.learner.state()
  assert parts.plan.agent.updates_per_batch == 6
  (count,) = {
    int(x)
    for x in jax.tree.leaves(state.agent.opt_state)
    if x.dtype == np.int32
  }
  batches = parts.learner.counters.lag_updates
  assert count == int(state.step) == summary['updates'] == 6 * batches
  version, _ = parts.publisher.latest(parts.plan.topology.inference[0])
  assert version == count
  # The versions that acted in a batch are recent.
  assert summary['policy_lag_mean'] < 2
