"""Tests of `seedrl_jax.envs.options`."""

from typing import Any

import pytest

from configs import base as base_config
from seedrl_jax.envs import options
from tests.envs import streams

ATARI = {
  'max_episode_steps': 27000,
  'frame_skip': 4,
  'stack_num': 4,
  'noop_max': 30,
  'mode': -1,
  'num_threads': 0,
}
CARTPOLE = {'max_episode_steps': 500}


def test_every_named_option_is_a_key_of_the_config():
  assert set(options.NAMED) <= set(base_config.get_config().env)
  assert options.set_options(base_config.get_config().env) == {}


def test_unset_options_are_left_to_envpool_except_the_stack():
  assert options.envpool_options(streams.config('Pong-v5'), ATARI) == {
    'stack_num': 1
  }
  assert options.envpool_options(streams.config('CartPole-v1'), CARTPOLE) == {}


def test_set_options_are_passed_on():
  config = streams.config(
    'Pong-v5', stack_num=4, frame_skip=2, options={'mode': 1}
  )
  assert options.envpool_options(config, ATARI) == {
    'stack_num': 4,
    'frame_skip': 2,
    'mode': 1,
  }


@pytest.mark.parametrize(
  ('name', 'value'),
  [('frame_skip', 4), ('episodic_life', False), ('noop_max', 1)],
)
def test_option_that_the_id_lacks_is_refused(name: str, value: Any):
  config = streams.config('CartPole-v1', **{name: value})
  with pytest.raises(ValueError, match=f'--config.env.{name}: CartPole-v1'):
    options.envpool_options(config, CARTPOLE)


@pytest.mark.parametrize(
  ('env_id', 'default'),
  [('Catch-v0', 2**31 - 1), ('CoinrunEasy-v0', 1000), ('Snake-v1', 4000)],
)
def test_time_limit_that_envpool_ignores_is_refused(env_id: str, default: int):
  config = streams.config(env_id, max_episode_steps=5)
  with pytest.raises(ValueError, match='max_episode_steps: EnvPool does not'):
    options.envpool_options(config, {'max_episode_steps': default})


@pytest.mark.parametrize(
  ('name', 'advice'),
  [
    ('mod', 'the nearest is mode'),
    ('frame_skip', 'use --config.env.frame_skip'),
    ('num_threads', 'use --config.env.num_threads'),
    ('seed', 'use --config.seed'),
  ],
)
def test_wrong_further_option_is_refused(name: str, advice: str):
  config = streams.config('Pong-v5', options={name: 1})
  with pytest.raises(ValueError, match=advice) as caught:
    options.envpool_options(config, ATARI)
  assert f'--config.env.options.{name}' in str(caught.value)


@pytest.mark.parametrize(
  ('num_envs', 'batch_size', 'flag'),
  [(0, 0, 'num_envs=0'), (4, 0, 'batch_size=0'), (4, 5, 'batch_size=5')],
)
def test_impossible_batches_are_refused(
  num_envs: int, batch_size: int, flag: str
):
  with pytest.raises(ValueError, match=f'--config.env.{flag}'):
    options.check_pool_size(num_envs, batch_size)
  options.check_pool_size(4, 4)
