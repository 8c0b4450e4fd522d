"""Every key of every configuration has a range; other values are refused."""

import math
import re

import pytest

from configs import base, r2d2_base
from seedrl_jax.agents import base as agents
from seedrl_jax.run import config_checks
from seedrl_jax.runtime import settings
from tests.configs import test_configs

_CONFIGS = test_configs.CONFIGS
_BAD = {
  'agent': ['os.path', './x', 'nobody', ''],
  'seed': [-1, 2**31, 2**64],
  'total_env_frames': [0],
  'num_eval_envs': [-1],
  'unroll_length': [0],
  'batch_size': [0],
  'env.num_envs': [-1],
  'env.num_threads': [-1, 100_000],
  'env.thread_affinity_offset': [-2, 10_000],
  'env.max_episode_steps': [0],
  'env.frame_skip': [0],
  'env.stack_num': [0],
  'env.noop_max': [0],
  'env.repeat_action_probability': [1.5],
  'env.drop_observations': [(1,)],
  'network.torso': ['vit'],
  'network.hidden_sizes': [(0,), ('a',), (1.5,)],
  'network.width': [0],
  'network.resnet_channels': [(16, 0)],
  'network.frame_stack': [0],
  'network.image_layout': ['chw'],
  'network.lstm_size': [-1],
  'network.previous_reward_clip': [-1.0],
  'network.compute_dtype': ['float16'],
  'optimizer.name': ['sgd'],
  'optimizer.learning_rate': [-1.0, math.nan, math.inf],
  'optimizer.schedule': ['cosine'],
  'optimizer.clip_norm': [-1.0],
  'optimizer.adam_b1': [1.0],
  'replay.backend': ['disk'],
  'replay.patience': [-1.0],
  'replay.sampler': ['foo'],
  'replay.max_size': [0],
  'replay.max_times_sampled': [-1],
  'replay.samples_per_insert': [-1.0, math.nan],
  'replay.tolerance': [-0.1],
  'replay.min_size': [0],
  'replay.priority_exponent': [-1.0],
  'replay.importance_exponent': [-0.1, 1.5, math.nan],
  'demonstrations.fraction': [-0.1, 1.0],
  'demonstrations.max_size': [0],
  'topology.streams_per_device': [0],
  'topology.max_devices': [-1],
  'topology.inference_affinity_offset': [-2, 10_000],
  'actors.timeout': [0.0, 1e12],
  'learner.prefetch': [0],
  'learner.publish_period': [0],
  'checkpoint.keep': [0, -1],
  'checkpoint.keep_every_hours': [-1.0, 1e12],
  'log.every_seconds': [0.0],
  'loss.discount': [-0.1, 1.5],
  'loss.target_entropy': [-1.0],
  'loss.entropy_cost_adjustment_speed': [0.0],
  'loss.reduction': ['max'],
}
_BAD_R2D2 = {
  'burn_in': [-1],
  'lookahead': [-1],
  'network.head_hidden_size': [-1],
  'loss.n_steps': [0],
  'loss.discount': [1.5],
  'loss.rescale_epsilon': [math.nan],
  'loss.huber_delta': [-0.5],
  'loss.reduction': ['max'],
  'loss.priority_eta': [1.5, math.nan],
  'loss.target_update_period': [0],
  'loss.initial_state': ['learned'],
  'exploration.epsilon_base': [1.5],
  'exploration.epsilon_alpha': [-1.0],
  'exploration.eval_epsilon': [-0.1],
}


def _check(config):
  config_checks.check(config, agents.ranges(config))


@pytest.mark.parametrize('name', _CONFIGS)
def test_a_shipped_configuration_passes(name):
  config = _CONFIGS[name]()
  _check(config)
  ranges = config_checks.RANGES | dict(agents.ranges(config))
  assert set(dict(settings.leaves(config, ranges))) == set(ranges)


@pytest.mark.parametrize(
  ('make', 'key', 'value'),
  [
    (module.get_config, key, value)
    for module, bad in ((base, _BAD), (r2d2_base, _BAD_R2D2))
    for key, values in bad.items()
    for value in values
  ],
)
def test_a_bad_value_is_refused_by_its_flag(make, key, value):
  config = make()
  config.update_from_flattened_dict({key: value})
  start = re.escape(f'--config.{key}={value}: ')
  with pytest.raises(ValueError, match=f'^{start}.*\\.$'):
    _check(config)


def test_another_agents_configuration_is_refused():
  config = base.get_config()
  config.agent = 'r2d2'
  with pytest.raises(ValueError, match=r'config\.burn_in is missing, which'):
    _check(config)
  config = r2d2_base.get_config()
  config.loss.entropy_cost = 0.01
  with pytest.raises(ValueError, match=r'config\.loss\.entropy_cost means'):
    _check(config)


def test_an_agent_without_a_table_may_have_keys_of_its_own():
  config = base.get_config()
  config.agent, config.loss.mine = 'tests.run.echoing', 1
  _check(config)
