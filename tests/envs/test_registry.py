"""Tests of `seedrl_jax.envs.registry`."""

import ctypes
import importlib
import os
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from seedrl_jax.envs import registry


def test_known_id_passes():
  registry.check_id('CartPole-v1')


@pytest.mark.parametrize(
  ('wrong', 'right'),
  [
    ('Pong-v4', 'Pong-v5'),
    ('ALE/Pong-v5', 'Pong-v5'),
    ('PongNoFrameskip-v4', 'Pong-v5'),
    ('Pong-ramNoFrameskip-v4', 'Pong-v5'),
    ('BreakoutDeterministic-v4', 'Breakout-v5'),
    ('MsPacman', 'MsPacman-v5'),
    ('cartpole', 'CartPole-v1'),
    ('cartpole-v1', 'CartPole-v1'),
    ('HalfCheetah-v2', 'HalfCheetah-v5'),
    ('Minigrid-Empty8x8-v0', 'MiniGrid-Empty-8x8-v0'),
    ('procgen:procgen-coinrun-v0', 'Coinrun[A-Z][a-z]+-v0'),
    ('dm_control cheetah-run', 'CheetahRun-v1'),
    ('academy_empty_goal', 'gfootball/academy_empty_goal-v1'),
  ],
)
def test_unknown_id_names_the_three_nearest(wrong: str, right: str):
  with pytest.raises(ValueError, match=f'nearest are {right}, ') as caught:
    registry.check_id(wrong)
  message = str(caught.value)
  assert f'--config.env.id={wrong}' in message
  nearest = message.partition('nearest are ')[2].rstrip('.')
  assert len(nearest.replace(' and ', ', ').split(', ')) == 3


def test_nearest_is_one_however_far():
  assert registry.nearest('?', ['ab', 'cd']) in ('ab', 'cd')
  assert registry.nearest('CD', ['ab', 'cd', 'ef']) == 'cd'


_NO_FILE = 'cannot open shared object file: No such file'
_QT = ImportError('EnvPool Procgen requires the system Qt 5 runtime on Linux.')


@pytest.mark.parametrize(
  ('error', 'missing', 'advice'),
  [
    (
      ImportError(f'libEGL.so.1: {_NO_FILE}'),
      'libEGL.so.1 libOpenGL.so.0 libQt5Gui.so.5',
      'EnvPool needs libraries of the system: install them with '
      '`apt install libegl1 libopengl0`.',
    ),
    (
      _QT,
      'libQt5Gui.so.5',
      'Procgen needs libraries of the system: install them with '
      '`apt install libqt5gui5`.',
    ),
    (
      ImportError(f'libz-9.so.1: {_NO_FILE}'),
      '',
      'EnvPool needs libz-9.so.1 of the system: install the package that '
      '`apt-file search libz-9.so.1` names.',
    ),
    (
      ModuleNotFoundError("No module named 'envpool'", name='envpool'),
      '',
      'EnvPool cannot be imported because Python has no module envpool: '
      'install this project with its dependencies (launch/setup.sh does).',
    ),
    (ImportError('odd'), '', 'EnvPool cannot be imported: odd'),
  ],
)
def test_failing_import_says_what_to_install(
  error: ImportError,
  missing: str,
  advice: str,
  monkeypatch: pytest.MonkeyPatch,
):
  def load(name: str) -> None:
    if name in missing.split():
      raise OSError

  def fail(name: str) -> Any:
    del name
    raise error

  monkeypatch.setattr(ctypes, 'CDLL', load)
  monkeypatch.setattr(importlib, 'import_module', fail)
  with pytest.raises(registry.MissingLibraryError) as caught:
    registry.load_envpool()
  assert str(caught.value) == advice


def test_advice_is_given_once():
  error = registry.MissingLibraryError('install it')
  with (
    pytest.raises(registry.MissingLibraryError) as caught,
    registry.explain_import_errors(),
  ):
    raise error
  assert caught.value is error


@pytest.mark.parametrize(
  ('env_id', 'family'),
  [
    ('Pong-v5', 'atari'),
    ('FrozenLake-v1', 'toy_text'),
    ('gfootball/academy_empty_goal-v1', 'gfootball'),
    ('HalfCheetah-v4', 'mujoco'),
  ],
)
def test_family(env_id: str, family: str):
  assert registry.family(env_id) == family


@pytest.mark.parametrize(
  ('env_id', 'num_envs', 'batch_size', 'num_streams', 'threads'),
  [
    ('CartPole-v1', 128, 64, 1, 1),
    ('Catch-v0', 128, 64, 1, 1),
    ('Catch-v0', 64, 64, 1, 2),
    ('Catch-v0', 64, 64, 6, 1),
    ('Catch-v0', 1, 1, 1, 1),
    ('MiniGrid-Empty-8x8-v0', 128, 64, 1, 1),
    ('Pong-v5', 128, 64, 1, 6),
    ('Pong-v5', 128, 64, 2, 3),
    ('Pong-v5', 8, 4, 1, 4),
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


def test_rounded_bounds_are_not_warned_of():
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    with registry.quiet_spaces():
      spaces.Box(np.full(2, -0.1), np.full(2, 0.1), (2,))
