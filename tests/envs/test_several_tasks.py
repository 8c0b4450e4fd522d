"""Tests of streams of several tasks."""

import multiprocessing

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import base, factory, tasks

_GRIDS = tuple(
  f'MiniGrid-{x}-v0' for x in ('Empty-5x5', 'LavaGapS5', 'DoorKey-5x5')
)


def _section(names, **values):
  section = base_config.get_config().env
  section.tasks = names
  section.update(values)
  return section


@pytest.mark.parametrize(
  ('weights', 'expected'),
  [((1, 1, 1), [0, 1, 2, 0, 1, 2, 0]), ((2, 1), [0, 1, 0, 0, 1, 0, 0])],
)
def test_environments_get_tasks_round_robin_or_by_weight(weights, expected):
  assert tasks.assign(7, weights).tolist() == expected


def test_evaluation_environments_get_tasks_round_robin():
  section = _section(_GRIDS[:2], task_weights=(3.0, 1.0))
  numbers = factory.task_numbers(section, np.arange(12), num_train=8)
  assert np.bincount(numbers[:8]).tolist() == [6, 2]
  assert numbers[8:].tolist() == [0, 1, 0, 1]


def _play(stream, num_steps):
  """Returns each environment's steps, and the episodes."""
  played = [[] for _ in range(stream.num_envs)]
  for _ in range(num_steps):
    output = stream.recv()
    assert stream.min_batch_size <= len(output.env_id) <= stream.batch_size
    # The same action for the same step of the same environment.
    counts = [len(played[i]) for i in output.env_id]
    action = np.int32([(7 * n + 3) % 5 % 3 for n in counts])
    for row, i in enumerate(output.env_id):
      image = output.observation['image'][row]
      step = (image.tobytes(), output.reward[row], output.step_type[row])
      played[i].append((*step, output.observation.get(types.TASK, [0])[row:]))
    stream.send(action, output.env_id)
  return played, stream.take_episodes()


@pytest.mark.parametrize('batch_size', [7, 4])
def test_its_steps_are_those_of_streams_of_one_task(batch_size):
  numbers = np.int32([0, 1, 0, 2, 2, 2, 1])
  section = _section(_GRIDS)
  stream = factory.make_stream(section, 5, 7, batch_size, tasks=numbers)
  played, episodes = _play(stream, 700)
  assert len(episodes) > 10
  start = 0
  for task, name in enumerate(_GRIDS):
    env_id = np.flatnonzero(numbers == task)
    n = len(env_id)
    alone = factory.make_stream(
      tasks.task_config(section, name), 5 + start, n, n
    )
    expected, ends = _play(alone, 1000)
    alone.close()
    start += n
    for steps, i in zip(expected, env_id, strict=True):
      assert len(played[i]) > 100
      for one, other in zip(played[i], steps, strict=False):
        assert one[:3] == other[:3] and one[3][0] == task
    returns = [e.episode_return for e in episodes if e.task == task]
    assert {e.env_id for e in episodes if e.task == task} <= {*env_id}
    assert returns and {*returns} <= {e.episode_return for e in ends}
  assert stream.episode_so_far(3)[::4] == (3, stream.tasks[3])
  stream.close()
  with pytest.raises(base.StreamClosed):
    stream.recv()


def test_all_at_once_come_in_order():
  stream = factory.make_stream(_section(_GRIDS), 1, 5, 5)
  output = stream.recv()
  assert output.env_id.tolist() == [0, 1, 2, 3, 4]
  assert output.observation[types.TASK].tolist() == [0, 1, 2, 0, 1]
  stream.close()


def test_tasks_share_the_processes_of_a_stream():
  names = 'gymnasium:CliffWalking-v1', 'gymnasium:CliffWalkingSlippery-v1'
  before = len(multiprocessing.active_children())
  stream = factory.make_stream(_section(names, processes=4), 0, 8, 8)
  assert len(multiprocessing.active_children()) - before == 4
  stream.close()


def test_patterns_stand_for_names():
  section = _section(('MiniGrid-LavaGapS?-v0', 'gymnasium:CartPole-v[01]'))
  names = [f'MiniGrid-LavaGapS{i}-v0' for i in (5, 6, 7)]
  names += [f'gymnasium:CartPole-v{i}' for i in (0, 1)]
  assert factory.task_names(section) == tuple(names)


@pytest.mark.parametrize(
  ('names', 'values', 'sentence'),
  [
    (('Pon-*',), {}, r'nothing matches Pon-\*; `seedrl list envs`'),
    (('gymnas:*',), {}, r'nothing matches gymnas:'),
    (_GRIDS[:1] * 2, {}, r'MiniGrid-Empty-5x5-v0 comes twice|a name comes'),
    (('Pong-v5', 'Pog-v5'), {}, r'env.id=Pog-v5: EnvPool has no such'),
    (_GRIDS, {'task_weights': (1.0, 2.0)}, r'task_weights=\(1.0, 2.0\): .* 3'),
    (_GRIDS, {'factory': 'a:b'}, r'--config.env.factory makes others'),
    (
      ('Pong-v5', 'Breakout-v5'),
      {},
      r'their action \(.*\(5,\).* and .*\(3,\).*full_action_space',
    ),
    (
      ('CartPole-v1', 'MountainCar-v0'),
      {},
      r'CartPole-v1 and MountainCar-v0 differ in their action .*wrap one',
    ),
    (
      ('Acrobot-v1', 'MountainCar-v0'),
      {},
      r'observation \(.*\(6,\).* and .*\(2,\).*; omit what differs',
    ),
    (
      ('gymnasium:CartPole-v1', 'gymnax:CartPole-v1'),
      {},
      r'gymnax:CartPole-v1 is in JAX, and gymnasium:CartPole-v1 is not',
    ),
  ],
)
def test_refuses(names, values, sentence):
  with pytest.raises(ValueError, match=sentence):
    factory.make_stream(_section(names, **values), 0, 4, 4)


def test_the_name_of_the_task_is_taken():
  spec = factory.make_spec(_section(_GRIDS[:2]))
  with pytest.raises(ValueError, match=r"observes 'task'.*drop_observations"):
    tasks.join_specs([spec, spec])
