"""Tests each environment's epsilon and the share of random actions."""

import jax
import numpy as np
import pytest

from seedrl_jax.actors import handshake
from seedrl_jax.actors.learner_side import remote_stream, slot_allocator
from seedrl_jax.agents.r2d2 import exploration
from tests.actors import toys
from tests.agents import r2d2_sequences

_CONFIG = r2d2_sequences.config().exploration


def _epsilons(num_envs, ids, config=_CONFIG):
  env_spec = r2d2_sequences.ENV_SPEC._replace(num_envs=num_envs)
  compiled = jax.jit(lambda x: exploration.epsilons(config, env_spec, x))
  return np.asarray(compiled(np.array(ids, np.int32)))


@pytest.mark.parametrize('num_envs', [2, 16, 256, 610])
def test_training_environments_have_the_published_epsilons(num_envs):
  epsilons = _epsilons(num_envs, np.arange(num_envs))
  expected = 0.4 ** (1 + 7 * np.arange(num_envs) / (num_envs - 1))
  np.testing.assert_allclose(np.sort(epsilons)[::-1], expected, rtol=1e-5)


def _check_spread(epsilons):
  """Checks that 16 epsilons of 256 reach from nearly 0.4 to nearly 0.4^8."""
  places = np.sort((np.log(epsilons) / np.log(0.4) - 1) / 7)
  assert places[0] < 0.1 and places[-1] > 0.85
  assert np.diff(places).max() < 0.25


def test_any_few_consecutive_environments_explore_differently():
  epsilons = _epsilons(256, np.arange(256))
  for start in range(256 - 16):
    _check_spread(epsilons[start : start + 16])


@pytest.mark.parametrize('num_streams', [1, 2, 4])
@pytest.mark.parametrize('group', [1, 4, 8, 16])
def test_actors_that_are_there_explore_differently(num_streams, group):
  ids = np.array_split(np.arange(256), num_streams)
  streams = [
    remote_stream.RemoteStream(toys.SPEC, len(x), len(x), 1, 0.0) for x in ids
  ]
  allocator = slot_allocator.SlotAllocator({'id': 'x'}, streams, (1,))

  def join():
    return allocator.allocate(handshake.Hello(group, 'toy'))

  places = [join() for _ in range(32 // group)]
  # Every second leaves, and one returns.
  for place in places[1::2]:
    place.stream.leave(place.lease)
  places = places[::2]
  places[0].stream.leave(places[0].lease)
  places[0] = join()
  found = [ids[streams.index(p.stream)][p.lease.env_id] for p in places]
  _check_spread(_epsilons(256, np.concatenate(found)))


def test_evaluation_environments_have_their_own():
  np.testing.assert_allclose(_epsilons(6, [6, 7, 100]), 1e-3)


@pytest.mark.parametrize('num_envs', [1, 2])
def test_few_environments(num_envs):
  epsilons = _epsilons(num_envs, [0, num_envs - 1, num_envs])
  last = 0.4 if num_envs == 1 else 0.4**8
  np.testing.assert_allclose(epsilons, [0.4, last, 1e-3], rtol=1e-5)


def test_ids_come_in_any_order():
  np.testing.assert_array_equal(
    _epsilons(6, [5, 7, 0, 3]),
    _epsilons(6, [0, 3, 5, 7])[[2, 3, 0, 1]],
  )


def test_actions_are_random_as_often_as_asked():
  each = 4000
  epsilon = np.repeat(np.array([0.0, 0.3, 1.0], np.float32), each)
  q_values = np.tile(np.array([0.0, 2.0, 1.0], np.float32), (3 * each, 1))
  act = jax.jit(exploration.epsilon_greedy)
  action = act(jax.random.key(0), q_values, epsilon)
  action = np.asarray(action).reshape(3, each)
  assert action.dtype == np.int32
  assert (action[0] == 1).all()
  share = [np.bincount(a, minlength=3) / each for a in action]
  # Five standard errors of the share.
  np.testing.assert_allclose(share[1], [0.1, 0.8, 0.1], atol=0.032)
  np.testing.assert_allclose(share[2], [1 / 3] * 3, atol=0.038)
