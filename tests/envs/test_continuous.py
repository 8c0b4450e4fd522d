"""Tests of environments with continuous actions: MuJoCo, dm_control, Box2D."""

import ctypes.util
import glob
import os
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base, factory, registry
from tests import runs
from tests.envs import streams

FIRST, MID, LAST = types.StepType
# Sizes of observation and action, and the action's bound.
TASKS = {
  'HalfCheetah-v5': (17, 6, 1.0),
  'Hopper-v5': (11, 3, 1.0),
  'Walker2d-v5': (17, 6, 1.0),
  'Ant-v5': (27, 8, 1.0),
  'Humanoid-v5': (348, 17, 0.4),
  'CheetahRun-v1': (17, 6, 1.0),
  'WalkerWalk-v1': (24, 6, 1.0),
  'Pendulum-v1': (3, 1, 2.0),
  'LunarLanderContinuous-v2': (8, 2, 1.0),
  'LunarLanderContinuous-v3': (8, 2, 1.0),
  'BipedalWalker-v3': (24, 4, 1.0),
}


def _play(section: Any, steps: int, seed: int = 1) -> tuple[list, Any]:
  """Returns the outputs of one environment with random actions, and it."""
  stream = streams.make(section, seed=seed)
  rng = np.random.default_rng(0)
  outputs = streams.roll(stream, stream.spec.action.sample(rng, steps, 1))
  for output in outputs:
    streams.assert_fits(output, stream.spec)
  return outputs, stream


@pytest.mark.parametrize('env_id', TASKS)
def test_task_is_one_vector_and_truncates_at_its_time_limit(env_id: str):
  size, action_size, bound = TASKS[env_id]
  section = streams.config(env_id, max_episode_steps=5)
  outputs, stream = _play(section, 12)
  assert stream.spec._replace(parts=None) == types.StreamSpec(
    types.ArraySpec((size,), np.dtype(np.float32)),
    types.ActionSpec(
      (action_size,),
      np.dtype(np.float32),
      (pytest.approx(-bound),) * action_size,
      (pytest.approx(bound),) * action_size,
    ),
    action_repeat=1,
    name=env_id,
  )
  step_types = [FIRST, *[MID] * 4, LAST]
  assert streams.column(outputs, 'step_type') == step_types * 2
  assert streams.column(outputs, 'discount') == [1.0] * 12
  rewards = streams.column(outputs, 'reward')
  # The pool leaves any number there.
  assert rewards[0] == rewards[6] == 0.0
  total = pytest.approx(sum(rewards[:6]))
  assert stream.take_episodes()[0] == base.Episode(0, total, 5, False)


@pytest.mark.parametrize(
  ('env_id', 'limit'),
  [('HalfCheetah-v5', 1000), ('CheetahRun-v1', 1000), ('Pendulum-v1', 200)],
)
def test_tasks_that_never_terminate_last_as_long_as_published(
  env_id: str, limit: int
):
  outputs, stream = _play(streams.config(env_id), limit + 1)
  assert streams.column(outputs, 'discount') == [1.0] * (limit + 1)
  (episode,) = stream.take_episodes()
  assert (episode.length, episode.terminated) == (limit, False)


@pytest.mark.parametrize(
  'env_id', ['Hopper-v5', 'Ant-v5', 'LunarLanderContinuous-v3']
)
def test_falling_terminates(env_id: str):
  outputs, stream = _play(streams.config(env_id), 400)
  end = streams.column(outputs, 'step_type').index(LAST)
  assert streams.column(outputs, 'discount')[end] == 0.0
  assert stream.take_episodes()[0].terminated


def test_dict_of_floats_is_joined_in_the_order_of_its_keys():
  section = streams.config('WalkerWalk-v1')
  output = streams.make(section).recv()
  raw: Any = streams.make(section)
  state = dict(zip(raw._keys, raw._pool._recv(), strict=True))
  keys = ('height', 'orientations', 'velocity')
  expected = np.concatenate([np.ravel(state[f'obs:{key}']) for key in keys])
  np.testing.assert_array_equal(
    output.observation[0], expected.astype(np.float32)
  )


def test_dropped_keys_are_not_joined():
  section = streams.config('WalkerWalk-v1', drop_observations=('velocity',))
  outputs, _ = _play(section, 2)
  assert outputs[0].observation.shape == (1, 15)


def test_contact_forces_are_an_option():
  section = streams.config('Ant-v5', frame_skip=10)
  section.options.use_contact_force = True
  spec = factory.make_spec(section)
  assert spec.observation.shape == (105,)
  # The frame skip of the physics repeats no action.
  assert spec.action_repeat == 1


def test_rewards_and_observations_are_gymnasiums():
  stream = streams.make(streams.config('Pendulum-v1'))
  reference = gymnasium.make('Pendulum-v1').unwrapped
  reference.reset()
  cos, sin, speed = stream.recv().observation[0]
  reference.state = np.array([np.arctan2(sin, cos), speed])
  # Beyond the bounds, to which both clip.
  actions = np.random.default_rng(0).uniform(-4, 4, (50, 1, 1))
  for action in actions.astype(np.float32):
    stream.send(action, np.zeros(1, np.int32))
    output = stream.recv()
    observation, reward, *_ = reference.step(action[0])
    assert output.reward[0] == pytest.approx(reward, abs=1e-4)
    np.testing.assert_allclose(output.observation[0], observation, atol=1e-4)


@pytest.mark.parametrize(
  ('env_id', 'shape'),
  [
    ('HalfCheetah-v5', (480, 480, 3)),
    ('CheetahRun-v1', (480, 480, 3)),
    ('Pendulum-v1', (500, 500, 3)),
    ('BipedalWalker-v3', (400, 600, 3)),
  ],
)
def test_envpool_draws_each_step(env_id: str, shape: tuple[int, ...]):
  section = streams.config(env_id)
  stream = factory.make_stream(section, 1, 1, 1, rendered=True)
  pictures = []
  for action in np.ones((3, 1, *stream.spec.action.shape), np.float32):
    env_id_ = stream.recv().env_id
    try:
      pictures.append(stream.render(0))
    except registry.MissingLibraryError as e:
      has_driver = glob.glob('/usr/lib/*/dri/swrast_dri.so')
      assert not (has_driver and ctypes.util.find_library('EGL_mesa'))
      pytest.skip(str(e))
    stream.send(action, env_id_)
  assert pictures[0].shape == shape and pictures[0].dtype == np.uint8
  assert (pictures[0] != pictures[2]).any()


_DRAW = """
from seedrl_jax.envs import factory, registry
from tests.envs import streams
section = streams.config('Hopper-v5')
stream = factory.make_stream(section, 1, 1, 1, rendered=True)
stream.recv()
try:
  stream.render(0)
except registry.MissingLibraryError as e:
  print(e)
"""


def test_failing_renderer_names_what_to_install(tmp_path: Any):
  # Where libEGL looks for what draws.
  nowhere = {'__EGL_VENDOR_LIBRARY_DIRS': str(tmp_path)}
  done = subprocess.run(
    [sys.executable, '-c', _DRAW],
    env={**os.environ, **nowhere, 'PYTHONPATH': str(runs.ROOT)},
    cwd=tmp_path,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == (
    'Hopper-v5 cannot be drawn: failed to initialize EGL. Install what is '
    'missing; `apt install libegl-mesa0 libgl1-mesa-dri` is what MuJoCo draws '
    'with without a GPU.\n'
  )


def test_package_that_gymnasium_needs_to_draw_is_named(monkeypatch: Any):
  monkeypatch.setitem(sys.modules, 'pygame', None)
  section = streams.config('gymnasium:Pendulum-v1')
  stream = factory.make_stream(section, 1, 1, 1, rendered=True)
  stream.recv()
  with pytest.raises(
    registry.MissingLibraryError,
    match=r'^gymnasium:Pendulum-v1 cannot be drawn: pygame is not installed',
  ):
    stream.render(0)
