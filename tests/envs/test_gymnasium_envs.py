"""Tests for seedrl_jax/envs/gymnasium_envs.py."""

import asyncio

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers

from seedrl_jax.envs import action_masks, gymnasium_envs, specs
from tests.envs import streams, toys

_EMPTY = spaces.Box(-1, 1, (0, 3))
_FULL = spaces.Box(-1, 1, (3,))


def with_spaces(observation: str, action: str) -> gymnasium.Env:
  env = toys.Scripted()
  env.observation_space = {
    'empty': _EMPTY,
    'full': _FULL,
    'dict': spaces.Dict({'a': _FULL, 'b': _EMPTY}),
  }[observation]
  env.action_space = _EMPTY if action == 'empty' else env.action_space
  return env


def normalized() -> gymnasium.Env:
  env = wrappers.NormalizeObservation(toys.Scripted())
  return wrappers.TimeLimit(wrappers.NormalizeReward(env), 9)


def _describe(factory: str, **kwargs: str) -> None:
  name = f'tests.envs.test_gymnasium_envs:{factory}'
  section = streams.config('', factory=name)
  section.factory_kwargs = kwargs
  gymnasium_envs.describe(section)


@pytest.mark.parametrize(
  ('observation', 'action', 'words'),
  [
    ('empty', 'full', r'observation of shape \(0, 3\) is empty; omit it'),
    ('dict', 'full', r"observation 'b' of shape \(0, 3\) is empty; omit"),
    ('full', 'empty', r'actions of shape \(0, 3\) are empty'),
  ],
)
def test_empty_arrays_are_refused(observation, action, words):
  with pytest.raises(ValueError, match=f'^--config.env.factory=.*{words}'):
    _describe('with_spaces', observation=observation, action=action)


def test_notebooks_loop_does_not_hinder_that_of_an_environment():
  async def describe() -> None:
    gymnasium_envs.describe(streams.toy('asynchronous'))

  asyncio.run(describe())


def test_warns_once_of_statistics_that_checkpoints_lack(monkeypatch):
  warnings: list[str] = []
  monkeypatch.setattr(
    action_masks.logging, 'warning', lambda _, x: warnings.append(x)
  )
  action_masks.warn_once.cache_clear()
  for _ in range(2):
    _describe('normalized')
    _describe('with_spaces', observation='full', action='full')
  assert [x.partition('statistics of ')[2].split()[0] for x in warnings] == [
    'NormalizeObservation',
    'NormalizeReward',
  ]
  assert '--config.normalization.rewards=True' in warnings[1]


def test_an_action_of_several_parts_is_one_vector():
  space = toys.ACTION_SPACES['hybrid']
  env = gymnasium_envs.PackedActions(toys.Echo('hybrid'))
  spec = specs.action_spec(env.action_space, 'flag')
  assert [part.kind for part in spec.parts] == [
    'discrete',
    'multi_discrete',
    'continuous',
  ]
  rng = np.random.default_rng(0)
  for vector in spec.sample(rng, 5):
    assert env.action_space.contains(vector)
    action = env.action(vector)
    assert space.contains(action)
    choice, (pair, box) = action['choice'], action['rest']
    expected = [choice, *pair, *box.ravel()]
    np.testing.assert_array_equal(np.float32(expected), vector)


def test_a_part_without_numbers_is_an_error():
  env = toys.Echo('box')
  env.action_space = spaces.Dict({'text': spaces.Text(3)})
  with pytest.raises(ValueError, match=r'flag: actions must be .* not Text;'):
    gymnasium_envs.PackedActions(env, 'flag')
