"""Tests of `seedrl_jax.envs.factory`: families, specs and drawing."""

import os
import re
import subprocess
import sys
from ctypes import util
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import factory, registry
from tests import runs
from tests.envs import streams, toys

U1, I4, F4 = np.dtype('uint8'), np.dtype('int32'), np.dtype('float32')
MINIGRID = {
  'direction': types.ArraySpec((), I4, (range(4),)),
  'image': types.ArraySpec((7, 7, 3), U1),
}
FAMILIES = {
  'CartPole-v1': (types.ArraySpec((4,), F4), 2, 1),
  'Catch-v0': (types.ArraySpec((10, 5), F4), 3, 1),
  'FrozenLake-v1': (types.ArraySpec((), I4, (range(16),)), 4, 1),
  'CliffWalking-v1': (types.ArraySpec((), I4, (range(48),)), 4, 1),
  'Pong-v5': (types.ArraySpec((1, 84, 84), U1), 6, 4),
  'MiniGrid-Empty-8x8-v0': (MINIGRID, 7, 1),
  'gfootball/academy_empty_goal-v1': (types.ArraySpec((72, 96, 4), U1), 19, 1),
}
PROCGEN = 'CoinrunEasy-v0'


def _check_family(env_id: str, expected: tuple[Any, int, int]) -> None:
  section = streams.config(env_id)
  spec = factory.make_spec(section)
  assert spec == types.StreamSpec(
    expected[0], types.discrete(expected[1]), expected[2], env_id
  )
  stream = streams.make(section, num_envs=2, batch_size=1)
  assert stream.spec == spec
  rng = np.random.default_rng(0)
  for t in range(12):
    output = stream.recv()
    streams.assert_fits(output, spec)
    if t == 0:
      assert output.step_type[0] == types.StepType.FIRST
      assert output.reward[0] == 0.0
    action = spec.action.sample(rng, 1)
    stream.send(action, output.env_id)
  stream.close()


def test_vizdoom_takes_one_choice_for_several_buttons():
  section = streams.config('Basic-v1', frame_skip=4)
  section.options.use_combined_action = True
  assert factory.make_spec(section).action.num_values == 6
  section.options.use_combined_action = False
  buttons = factory.make_spec(section).action
  assert (buttons.shape, buttons.dtype) == ((3,), np.float32)


_VIZDOOM = """
import seedrl_jax
import os
import scipy.linalg
# Threads of OpenBLAS's, which a fork waits for.
assert len(os.listdir('/proc/self/task')) == 1
import numpy as np
from tests.envs import streams, toys
section = streams.config('Basic-v1', frame_skip=4)
section.options.use_combined_action = True
stream = streams.make(section, num_envs=4)
streams.roll(stream, np.full((12, 4), 5))
stream.close()
"""


def test_vizdoom_starts_beside_scipy(tmp_path):
  subprocess.run(
    [sys.executable, '-c', _VIZDOOM],
    check=True,
    # It writes files to the working directory.
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(runs.ROOT)},
  )


@pytest.mark.parametrize('env_id', FAMILIES)
def test_family_arrives_as_its_spec_says(env_id: str):
  _check_family(env_id, FAMILIES[env_id])


def test_procgen_arrives_or_says_what_to_install():
  try:
    _check_family(PROCGEN, (types.ArraySpec((3, 64, 64), U1), 15, 1))
  except registry.MissingLibraryError as e:
    # EnvPool 1.2.7 brings its own Qt.
    assert not util.find_library('Qt5Gui')
    assert re.search('apt install .*libqt5gui5`', str(e))


def test_threads_may_be_set():
  section = streams.config('CartPole-v1', num_threads=3)
  stream: Any = streams.make(section, 4)
  assert stream._pool.config['num_threads'] == 3
  # The default is one or two (`test_registry.py`).
  stream = streams.make(streams.config('CartPole-v1'), 4)
  assert stream._pool.config['num_threads'] <= 2


def _chooser() -> Any:
  return streams.config(
    'Toy-v0', factory='tests.evaluation.evaluation_runs:chooser'
  )


def test_envpool_draws_what_was_received():
  section = streams.config('Pong-v5')
  stream = factory.make_stream(section, 1, 2, 2, rendered=True)
  pictures = []
  # Pong serves the first ball after a while.
  for _ in range(25):
    env_id = stream.recv().env_id
    pictures.append([stream.render(i) for i in range(2)])
    stream.send(np.ones(2, np.int32), env_id)
  chex.assert_shape([p for pair in pictures for p in pair], (210, 160, 3))
  assert pictures[0][0].dtype == np.uint8
  assert (pictures[0][0] != pictures[24][0]).any()
  assert stream.steps_per_second == 15.0
  stream.close()


def test_gymnasium_draws_each_step_and_the_episodes_end():
  stream = factory.make_stream(_chooser(), 1, 1, 1, rendered=True)
  shades = []
  for _ in range(7):
    env_id = stream.recv().env_id
    shades.append(stream.render(0)[0, 0, 0].item())
    stream.send(np.zeros(1, np.int32), env_id)
  assert shades == [0, 40, 80, 120, 160, 200, 0]
  assert stream.steps_per_second == 10.0
  stream.close()


def test_a_users_mistake_in_drawing_is_shown_as_it_is(monkeypatch):
  monkeypatch.setattr(toys.Echo, 'render', lambda self: 1 // 0)
  section = streams.toy('echo', kind='box')
  stream = factory.make_stream(section, 1, 1, 1, rendered=True)
  stream.recv()
  with pytest.raises(ZeroDivisionError):
    stream.render(0)
  stream.close()


@pytest.mark.parametrize(
  ('section', 'rendered'),
  [
    (streams.config('Catch-v0'), True),  # has no drawing
    (streams.config('CartPole-v1'), False),
    (_chooser(), False),
    (streams.toy('scripted'), True),  # takes no render_mode
    (
      streams.config('', factory='tests.envs.toys:scripted', processes=1),
      False,
    ),
  ],
)
def test_what_cannot_be_drawn_is_none(section: Any, rendered: bool):
  stream = factory.make_stream(section, 1, 1, 1, rendered=rendered)
  stream.recv()
  assert stream.render(0) is None
  assert stream.steps_per_second
  stream.close()
