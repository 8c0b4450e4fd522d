"""Tests that a new run begins with what another one has learned."""

import chex
import numpy as np
import pytest

import seedrl_jax
from seedrl_jax.configs import ppo_cartpole, sac_pendulum
from tests import runs


def _config(make=ppo_cartpole.get_config, **values):
  normal = {
    'env__id': 'Pendulum-v1',
    'replay__min_size': 8,
    'replay__samples_per_insert': 8.0,
    'updates_per_call': 1,
  }
  if make is ppo_cartpole.get_config:
    normal = {'env__id': 'CartPole-v1', 'minibatches': 4}
    normal['normalization__observations'] = True
  return runs.tiny(make, **{**normal, 'total_env_frames': 200, **values})


@pytest.mark.parametrize(
  ('make', 'has_optimizer'),
  [
    (ppo_cartpole, False),
    (ppo_cartpole, True),
    pytest.param(sac_pendulum, False, marks=pytest.mark.slow),
    (sac_pendulum, True),
  ],
)
def test_takes_parameters_and_statistics(tmp_path, make, has_optimizer):
  config = _config(make.get_config)
  run = runs.Run(config, tmp_path / 'a')
  run.train()
  old, fresh = run.system.parts.learner.state(), run.initial_state
  config.optimizer.learning_rate = 1e-5
  new = runs.Run(
    config,
    tmp_path / 'b',
    init_from=tmp_path / 'a',
    init_optimizer=has_optimizer,
  )
  initial = new.initial_state
  chex.assert_trees_all_equal(initial.agent.params, old.agent.params)
  if make is ppo_cartpole:
    chex.assert_trees_all_equal(
      initial.agent.observations, old.agent.observations
    )
  source = old if has_optimizer else fresh
  chex.assert_trees_all_equal(initial.agent.opt_state, source.agent.opt_state)
  assert not np.any(initial.step)
  assert 'Starting from what checkpoint ' in new.output
  assert new.train()['status'] == 'finished'
  # It goes on with its own, whatever the flag says.
  again = runs.Run(config, tmp_path / 'b', init_from=tmp_path / 'a')
  again.train()
  assert 'for a new run: this one goes on.' in again.output
  chex.assert_trees_all_equal(again.initial_state.agent.params, new.params)


def test_what_does_not_fit_is_rejected(tmp_path):
  runs.Run(_config(), tmp_path / 'a').train()
  wide = _config(network__hidden_sizes=(9,))
  with pytest.raises(
    ValueError,
    match=r'--init_from=.*a: network.hidden_sizes is \[8\] there and \[9\] '
    r'here; .*params.* is float32\[.*8\] in the checkpoint, float32\[.*9\] in '
    'the configuration.*; take the same agent, network',
  ):
    runs.Run(wide, tmp_path / 'b', init_from=tmp_path / 'a')
  assert not (tmp_path / 'b/checkpoints').exists()
  with pytest.raises(ValueError, match=r'^init_from=.*: holds no checkpoint;'):
    seedrl_jax.train(_config(), tmp_path / 'b', init_from=tmp_path / 'none')
