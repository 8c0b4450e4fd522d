"""Tests for seedrl_jax/evaluation/env_check.py."""

import asyncio
import itertools
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers

import seedrl_jax
from tests.envs import toys


class Faulty(gymnasium.Env):
  """Episodes of four steps; has the fault `kind` in some of its steps."""

  def __init__(self, kind: str = ''):
    box = spaces.Box(0, 1, (2,), np.float32)
    self.observation_space = spaces.Dict({
      'box': box,
      'inner': spaces.Dict({'choice': spaces.Discrete(3), 'box': box}),
    })
    self.action_space = spaces.Discrete(2)
    self._kind = kind
    self._step = 0

  def _observe(self, *kinds: str):
    value = self.np_random.random() if self._kind != 'random' else next(_COUNT)
    observation = {
      'box': np.full(2, value, np.float32),
      'inner': {'choice': 1, 'box': np.zeros(2, np.float32)},
    }
    if self._kind == 'many' and self._step == 2:
      observation['box'][:] = np.nan
      observation['inner'] = {'choice': 3, 'box': np.zeros(3)}
    if self._kind == 'shapes':
      del observation['box' if self._step == 1 else 'inner']
    if self._kind == 'bounds':
      observation['box'][:] = 1.5
    return observation

  def reset(self, *, seed=None, options=None):
    super().reset(seed=seed)
    self._step = 0
    if self._kind == 'reset':
      return self._observe()
    return self._observe(), {}

  def step(self, action):
    self._step += 1
    if self._kind == 'raises' and self._step == 3:
      raise KeyError('robot')
    over = self._step == 4 and self._kind != 'endless'
    reward = None if self._kind == 'many' else 1.0
    if self._kind == 'old':
      return self._observe(), reward, over, {}
    return self._observe(), reward, over, False, {}

  def close(self):
    if self._kind == 'close':
      raise OSError('still open')


_COUNT = itertools.count()


@pytest.mark.parametrize(
  ('kind', 'faults', 'warnings'),
  [
    ('', [], []),
    (
      'many',
      [
        r"for the key 'box' that is not finite. \(3 times\)",
        "for the key 'inner.box' of shape",
        "for the key 'inner.choice' with 3",
        r'a reward of None.* \(12 times\)',
      ],
      [],
    ),
    ('raises', ["failed in step: KeyError: 'robot'.*line"], []),
    (
      'shapes',
      [
        r"without the key 'box'\. \(3 times\)",
        # Of each of its two arrays.
        r"without the key 'inner'\. \(28 times\)",
      ],
      [],
    ),
    ('old', ['4 values from step instead of 5'], []),
    ('reset', ['dict from reset instead of 2 values'], []),
    ('close', ['OSError: still open'], []),
    ('endless', [], ['had not ended after 50 steps']),
    ('bounds', [], ["for the key 'box' with 1.5"]),
    ('random', [], ['for the key', 'Resets with seed 0 differ']),
  ],
)
def test_reports_every_fault_and_warning(kind, faults, warnings):
  report = seedrl_jax.check_env(lambda: Faulty(kind), 3, 50)
  for texts, patterns in ((report.faults, faults), (report.warnings, warnings)):
    assert len(texts) == len(patterns), texts
    for text, pattern in zip(sorted(texts), sorted(patterns), strict=True):
      assert re.search(pattern, text), (pattern, text)
  assert report.is_deterministic == {'random': False, 'reset': None}.get(
    kind, True
  )
  assert f'Faults: {len(faults)}; ' in report.report()


def test_reports_speed_and_the_network_that_auto_takes():
  env = wrappers.TimeLimit(toys.Scripted(), 99)
  report = seedrl_jax.check_env(env, episodes=3)
  assert (report.episodes, report.steps) == (3, 3 + 5 + 4)
  assert report.steps_per_second > 0
  assert 'float32[3], torso mlp' in report.network
  report = seedrl_jax.check_env('tests.envs.toys:scripted', episodes=1)
  assert report.name == 'tests.envs.toys:scripted' and not report.faults


def test_notebooks_loop_does_not_hinder_that_of_an_environment():
  async def check():
    return seedrl_jax.check_env('tests.envs.toys:asynchronous', episodes=1)

  assert not asyncio.run(check()).faults


def test_environments_of_envpool_are_checked_through_their_streams():
  config = seedrl_jax.make_config('vtrace_cartpole', env__id='Catch-v0')
  report = seedrl_jax.check_env(config, episodes=2)
  assert (report.steps, report.is_deterministic) == (2 * 9, True)
  assert not report.faults and not report.warnings


@pytest.mark.parametrize(
  ('kind', 'words'),
  [
    ('observation', 'observations must be arrays'),
    ('action', 'actions must be arrays'),
  ],
)
def test_a_space_that_cannot_be_used_is_reported(kind, words):
  env = toys.Scripted()
  setattr(env, f'{kind}_space', spaces.Text(3))
  (fault,) = seedrl_jax.check_env(env).faults
  assert f'Scripted: {words}' in fault


def test_what_training_would_refuse_or_warn_of_is_reported():
  env = toys.Scripted()
  env.observation_space = spaces.Discrete(2**21)
  env.action_space = spaces.Discrete(3, start=1)
  report = seedrl_jax.check_env(env, 1, 9)
  texts = '\n'.join(report.faults)
  assert 'among 2097152 values, too many to learn each' in texts
  assert 'actions of tests.envs.toys:Scripted begin at (1,), not at 0' in texts
  assert not report.network
  env = toys.Scripted()
  env.observation_space = spaces.MultiDiscrete([9, 9, 4], start=[0, 0, 1])
  env._observe = lambda action: np.array([0, 9, 1])
  report = seedrl_jax.check_env(env, 1, 9)
  assert not report.faults
  assert 'with 9, which is not from 0 to 8' in report.warnings[0]


def test_what_makes_no_environment_is_a_fault():
  report = seedrl_jax.check_env(lambda: 3)
  assert 'not int' in report.faults[0]
  report = seedrl_jax.check_env('nowhere:make')
  assert 'there is no module nowhere' in report.faults[0]
