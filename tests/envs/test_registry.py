"""Tests of `seedrl_jax.envs.registry`."""

import importlib
import os
from typing import Any

import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import registry
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


@pytest.mark.parametrize(
  ('wrong', 'right'),
  [
    ('PongNoFrameskip-v4', 'Pong-v5'),
    ('ALE/Pong-ram-v5', 'Pong-v5'),
    ('cartpole', 'CartPole-v1'),
    ('HalfCheetah-v2', 'HalfCheetah-v5'),
    ('dm_control/cheetah-run-v0', 'CheetahRun-v1'),
    ('walker_walk', 'WalkerWalk-v1'),
    ('dmc/ball_in_cup-catch', 'BallInCupCatch-v1'),
    ('LunarLanderContinous-v2', 'LunarLanderContinuous-v3'),
    ('Ant', 'Ant-v5'),
    ('procgen:procgen-coinrun-v0', 'Coinrun[A-Z][a-z]+-v0'),
    ('academy_empty_goal', 'gfootball/academy_empty_goal-v1'),
  ],
)
def test_unknown_id_names_the_nearest(wrong: str, right: str):
  with pytest.raises(ValueError, match=f'nearest are {right}, ') as caught:
    registry.check_id(wrong)
  assert f'--config.env.id={wrong}' in str(caught.value)
  assert ('suites are gymnasium:, ' in str(caught.value)) == (':' in wrong)
  registry.check_id('CartPole-v1')


def test_failing_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
  def fail(name: str) -> Any:
    raise ImportError(f'libEGL.so.1: no such file, for {name}.')

  monkeypatch.setattr(importlib, 'import_module', fail)
  with pytest.raises(registry.MissingLibraryError) as caught:
    registry.check_id('CartPole-v1')
  assert str(caught.value) == (
    'EnvPool cannot be imported: libEGL.so.1: no such file, for envpool. '
    '`apt install libegl1 libopengl0 libqt5gui5` installs libraries of the '
    'system that may be missing; launch/setup.sh also modules of Python.'
  )


@pytest.mark.parametrize(
  ('env_id', 'num_envs', 'batch_size', 'num_streams', 'threads'),
  [
    ('CartPole-v1', 128, 64, 1, 1),
    ('Catch-v0', 64, 64, 1, 2),
    ('Catch-v0', 64, 64, 6, 1),
    ('Pong-v5', 128, 64, 1, 6),
    ('Pong-v5', 128, 64, 2, 3),
    ('Pong-v5', 64, 64, 100, 1),
  ],
)
def test_default_threads(
  env_id: str,
  num_envs: int,
  batch_size: int,
  num_streams: int,
  threads: int,
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(6)))
  got = registry.default_num_threads(env_id, num_envs, batch_size, num_streams)
  assert got == threads


def test_pace_is_that_of_the_family():
  assert registry.steps_per_second('Pong-v5', 4) == 15.0
  assert registry.steps_per_second('CartPole-v1', 1) == 30.0


def test_every_named_option_is_a_key_of_the_config():
  assert set(registry.NAMED) <= set(base_config.get_config().env)
  assert registry.set_options(base_config.get_config().env) == {}


def test_options_are_passed_on_and_frames_are_not_stacked_unless_asked():
  unset, cartpole = streams.config('Pong-v5'), streams.config('CartPole-v1')
  assert registry.envpool_options(unset, ATARI) == {'stack_num': 1}
  assert registry.envpool_options(cartpole, CARTPOLE) == {}
  config = streams.config(
    'Pong-v5', stack_num=4, frame_skip=2, options={'mode': 1}
  )
  expected = {'stack_num': 4, 'frame_skip': 2, 'mode': 1}
  assert registry.envpool_options(config, ATARI) == expected


@pytest.mark.parametrize(
  ('env_id', 'values', 'known', 'sentence'),
  [
    (
      'CartPole-v1',
      {'noop_max': 1},
      CARTPOLE,
      'CartPole-v1 has no option noop_max',
    ),
    ('Pong-v5', {'options': {'mod': 1}}, ATARI, 'no option mod; .* give mode'),
    (
      'Pong-v5',
      {'options': {'num_threads': 1}},
      ATARI,
      'options.num_threads: use --config.env.num_threads',
    ),
    (
      'Pong-v5',
      {'options': {'seed': 1}},
      ATARI,
      'options.seed: use --config.seed',
    ),
    (
      'Catch-v0',
      {'max_episode_steps': 5},
      {'max_episode_steps': 2**31 - 1},
      'max_episode_steps: EnvPool does not',
    ),
    (
      'Snake-v1',
      {'max_episode_steps': 5},
      {'max_episode_steps': 4000},
      'max_episode_steps: EnvPool does not',
    ),
  ],
)
def test_wrong_options_are_refused(
  env_id: str, values: dict[str, Any], known: dict[str, int], sentence: str
):
  config = streams.config(env_id, **values)
  with pytest.raises(ValueError, match=f'^--config.env.*{sentence}'):
    registry.envpool_options(config, known)
