"""Tests for seedrl_jax/runtime/config_changes.py."""

import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.runtime import config_changes, workdir


def _config(**changes):
  config = base_config.get_config()
  config.update_from_flattened_dict(changes)
  return config


def test_changes_that_can_be_followed_are_told():
  new = _config(total_env_frames=5, **{'loss.discount': 0.5, 'seed': 2})
  # Both are new; the second only begins like a fixed key.
  new.env.options.difficulty = 3
  new.network_notes = 'x'
  assert config_changes.check_resumable(_config(), new) == [
    'env.options.difficulty: None -> 3',
    'loss.discount: 0.99 -> 0.5',
    'network_notes: None -> x',
    'seed: 1 -> 2',
    'total_env_frames: 2000000 -> 5',
  ]


def test_changes_that_the_parameters_cannot_follow_are_refused():
  changes = {
    'agent': 'r2d2',
    'env.id': 'x',
    'env.stack_num': 4,
    'network.hidden_sizes': (32,),
    'network.lstm_size': 8,
    'optimizer.rmsprop_momentum': 0.5,
  }
  with pytest.raises(workdir.WorkdirError, match='does not fit') as error:
    config_changes.check_resumable(_config(), _config(**changes, seed=2))
  message = str(error.value)
  assert 'env.id: CartPole-v1 -> x; env.stack_num: None -> 4; net' in message
  assert 'network.hidden_sizes: [64, 64] -> [32]; ' in message
  assert all(f'{key}: ' in message for key in changes)
  assert 'seed' not in message


def test_name_of_what_a_factory_makes_may_change():
  factory = {'env.factory': 'toys:make'}
  old = _config(**factory, **{'env.id': 'toys:make'})
  assert config_changes.check_resumable(old, _config(**factory)) == []
