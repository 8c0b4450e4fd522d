"""Tests of rendering environments of EnvPool and Gymnasium."""

import chex
import numpy as np
import pytest

from seedrl_jax.envs import factory, registry
from tests.envs import streams

_ZERO = np.zeros(1, np.int32)


def _make(section, rendered: bool = True, num_envs: int = 1):
  return factory.make_stream(section, 1, num_envs, num_envs, rendered=rendered)


def _chooser():
  return streams.config(
    'Toy-v0', factory='tests.evaluation.evaluation_runs:chooser'
  )


@pytest.mark.parametrize(
  ('env_id', 'shape'),
  [('CartPole-v1', (400, 600, 3)), ('Pong-v5', (210, 160, 3))],
)
def test_envpool_draws_what_was_received(env_id, shape):
  stream = _make(streams.config(env_id), num_envs=2)
  pictures = []
  # Pong serves the first ball after a while.
  for _ in range(25):
    env_id = stream.recv().env_id
    pictures.append([stream.render(i) for i in range(2)])
    stream.send(np.ones(2, np.int32), env_id)
  chex.assert_shape([p for pair in pictures for p in pair], shape)
  assert pictures[0][0].dtype == np.uint8
  assert (pictures[0][0] != pictures[24][0]).any()
  stream.close()


def test_final_picture_is_of_the_episodes_end():
  stream = _make(_chooser())
  shades = []
  for _ in range(7):
    env_id = stream.recv().env_id
    shades.append(stream.render(0)[0, 0, 0].item())
    stream.send(_ZERO, env_id)
  assert shades == [0, 40, 80, 120, 160, 200, 0]
  stream.close()


@pytest.mark.parametrize('env_id', ['Catch-v0', 'FrozenLake-v1'])
def test_envpool_id_without_a_drawing_gives_none(env_id):
  stream = _make(streams.config(env_id))
  stream.recv()
  assert stream.render(0) is None
  stream.close()


@pytest.mark.parametrize(
  'section',
  [
    streams.config('CartPole-v1'),
    _chooser(),
    streams.config('', factory='tests.envs.toys:scripted', processes=1),
  ],
)
def test_stream_that_was_not_made_to_draws_nothing(section):
  stream = _make(section, rendered=False)
  stream.recv()
  assert stream.render(0) is None
  assert stream.steps_per_second
  stream.close()


def test_factory_without_render_mode_is_called_without():
  stream = _make(streams.toy('scripted'))
  stream.recv()
  assert stream.render(0) is None
  stream.close()


def test_episode_so_far_counts_up_and_ends_at_zero():
  stream = _make(streams.toy('scripted'))
  so_far = []
  for _ in range(5):
    env_id = stream.recv().env_id
    so_far.append(stream.episode_so_far(0))
    stream.send(_ZERO, env_id)
  # Rewards 1, 2 and 3, and the next episode's FIRST.
  assert so_far == [(0, 0), (1, 1), (3, 2), (0, 0), (0, 0)]
  stream.close()


def test_pace_is_that_of_the_family():
  assert registry.steps_per_second('Pong-v5', 4) == 15.0
  assert registry.steps_per_second('CartPole-v1', 1) == 30.0


def test_pace_is_the_streams():
  atari, toy = _make(streams.config('Pong-v5')), _make(_chooser())
  assert (atari.steps_per_second, toy.steps_per_second) == (15.0, 10.0)
  assert _make(streams.toy('scripted')).steps_per_second == 30.0
  atari.close()
  toy.close()
