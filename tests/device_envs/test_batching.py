"""Tests of the contract of environments in JAX, and of the stream."""

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.device_envs import batching
from seedrl_jax.device_envs import stream as stream_lib
from seedrl_jax.envs import base as envs
from tests.device_envs import toys

_FIRST, _MID, _LAST = types.StepType


def _play(env, num_envs, num_steps, seed=0):
  """Returns outputs `[T, N]` and actions `[T, N]` of a random policy."""
  stream = stream_lib.DeviceEnvStream(env, seed, num_envs)
  rng = np.random.default_rng(seed)
  outputs, actions = [], []
  for _ in range(num_steps):
    outputs.append(stream.recv())
    actions.append(env.spec.action.sample(rng, num_envs))
    stream.send(actions[-1], outputs[-1].env_id)
  return (
    jax.tree.map(lambda *x: np.stack(x), *outputs),
    np.stack(actions),
    stream,
  )


@pytest.mark.parametrize('reset_share', [0.01, 0.5, 1.0])
def test_episodes_follow_the_contract_of_streams(reset_share):
  output, action, stream = _play(toys.make(reset_share), 6, 300)
  num_waits = 0
  for i in range(6):
    kind, reward = output.step_type[:, i], output.reward[:, i]
    discount, steps = (
      output.discount[:, i],
      output.observation['steps'][:, i, 0],
    )
    number = output.observation['number'][:, i]
    assert kind[0] == _FIRST and {*kind} == {*types.StepType}
    for t in range(1, len(kind)):
      before, a = kind[t - 1], action[t - 1, i]
      if kind[t] == _FIRST:
        # After LAST, or while it waits for a reset.
        assert before in (_LAST, _FIRST)
        assert (reward[t], discount[t]) == (0, 1)
        num_waits += before == _FIRST
        continue
      assert before != _LAST
      # The true observation, also at the end of an episode.
      assert number[t] == number[t - 1] and steps[t] == steps[t - 1] + 1
      assert reward[t] == a
      assert (kind[t] == _LAST) == (a == toys.END or steps[t] == toys.LIMIT)
      assert discount[t] == (a != toys.END)
    # Episodes begin anew with the step after FIRST.
    starts = np.flatnonzero((kind[:-1] == _FIRST) & (kind[1:] != _FIRST))
    assert (steps[starts] == 0).all() and len({*number[starts]}) == len(starts)
  assert (num_waits > 0) == (reset_share < 1)
  ended = output.step_type == _LAST
  episodes = stream.take_episodes()
  assert len(episodes) == np.count_nonzero(ended) > 100
  assert {e.length for e in episodes} == {*range(1, toys.LIMIT + 1)}
  total = sum(e.length for e in episodes)
  moved = np.count_nonzero(output.step_type != _FIRST)
  assert 0 <= moved - total < 6 * toys.LIMIT
  assert sum(e.terminated for e in episodes) == np.count_nonzero(
    ended & (output.discount == 0)
  )


def test_no_environment_waits_for_long():
  """Resets are due faster than they come."""
  output, _, _ = _play(toys.make(0.125), 16, 400)
  for i in range(16):
    (ends,) = np.nonzero(output.step_type[:, i] == _LAST)
    # An episode, and 16 / 2 steps.
    assert np.diff(ends).max() <= toys.LIMIT + 1 + 8


def test_seeds_decide_and_continuous_actions_are_clipped():
  env = toys.make(is_continuous=True)
  first, again, other = (_play(env, 2, 20, seed)[0] for seed in (1, 1, 2))
  jax.tree.map(np.testing.assert_array_equal, first, again)
  assert not np.array_equal(
    first.observation['number'], other.observation['number']
  )
  stream = stream_lib.DeviceEnvStream(env, 0, 2)
  output = stream.recv()
  # In any order of environments.
  stream.send(np.array([[7.0], [0.25]], np.float32), output.env_id[::-1])
  np.testing.assert_allclose(stream.recv().reward, [0.25, 0.5])


def test_a_closed_stream_wakes_and_refuses():
  stream = stream_lib.DeviceEnvStream(toys.make(), 0, 2)
  stream.recv()
  stream.interrupt()
  with pytest.raises(envs.StreamClosed):
    stream.recv()
  with pytest.raises(envs.StreamClosed):
    stream.send(np.zeros(2, np.int32), np.arange(2, dtype=np.int32))


@pytest.mark.parametrize('tasks', [None, [1, 0, 0, 2, 1], [2, 2, 2, 0, 0]])
def test_steps_of_several_tasks_are_those_of_one_task_each(tasks):
  envs = [toys.make(share) for share in (0.2, 0.5, 1.0)]
  numbers = np.array([0, 1, 2, 0, 1] if tasks is None else tasks)
  joined = batching.join(envs, None if tasks is None else numbers)
  assert joined.spec.tasks == ('Toy',) * 3
  key, rng = jax.random.key(3), np.random.default_rng(4)
  state, output = joined.init(key, 5)
  keys = jax.random.split(key, 3)
  alone = {}
  for task in {*numbers.tolist()}:
    rows = np.flatnonzero(numbers == task)
    alone[task] = rows, *envs[task].init(keys[task], len(rows))
  step = jax.jit(joined.step)
  for _ in range(20):
    assert output.env_id.tolist() == [0, 1, 2, 3, 4]
    assert output.observation[types.TASK].tolist() == numbers.tolist()
    action = rng.integers(0, 3, 5, np.int32)
    for task, (rows, part, expected) in alone.items():
      for field in ('reward', 'discount', 'step_type'):
        actual = np.asarray(getattr(output, field))[rows]
        np.testing.assert_array_equal(actual, getattr(expected, field))
      for name, x in expected.observation.items():
        actual = np.asarray(output.observation[name])[rows]
        np.testing.assert_allclose(actual, x, rtol=1e-6)
      alone[task] = rows, *envs[task].step(part, action[rows])
    state, output = step(state, action)
