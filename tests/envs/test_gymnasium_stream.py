"""Tests of `seedrl_jax.envs.gymnasium_stream` on scripted toys."""

import warnings
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base, gymnasium_stream
from tests.envs import streams, toys

FIRST, MID, LAST = types.StepType
ACTIONS = np.arange(16, dtype=np.int32)[:, None] % 4


def test_scripted_episodes_come_out_as_they_are():
  stream = streams.make(streams.toy('scripted'))
  outputs = streams.roll(stream, ACTIONS)
  assert streams.column(outputs, 'step_type') == [
    *[FIRST, MID, MID, LAST],
    *[FIRST, MID, MID, MID, MID, LAST],
    *[FIRST, MID, MID, MID, LAST],
    FIRST,
  ]
  discounts = np.ones(16)
  # Terminated; truncated (still bootstraps); both (does not).
  discounts[3], discounts[9], discounts[14] = 0, 1, 0
  assert streams.column(outputs, 'discount') == discounts.tolist()
  assert streams.column(outputs, 'reward') == [
    *[0, 1, 2, 3],
    *[0, 1, 2, 3, 4, 5],
    *[0, 1, 2, 3, 4],
    0,
  ]
  assert stream.take_episodes() == [
    base.Episode(0, 6.0, 3, 3, terminated=True),
    base.Episode(0, 15.0, 5, 5, terminated=False),
    base.Episode(0, 10.0, 4, 4, terminated=True),
  ]


def test_actions_reach_their_steps_but_for_the_one_after_the_end():
  stream = streams.make(streams.toy('scripted'))
  outputs = streams.roll(stream, ACTIONS)
  seen = np.array(streams.column(outputs, 'observation'))
  # (episode, step, action); the action of time 3 led to no step.
  assert seen[:6].tolist() == [
    [0, 0, -1],
    [0, 1, 0],
    [0, 2, 1],
    [0, 3, 2],
    [1, 0, -1],
    [1, 1, 0],
  ]
  assert outputs[0].observation.dtype == np.float32


def test_groups_take_turns_and_actions_find_their_environment():
  stream = streams.make(streams.toy('scripted'), num_envs=5, batch_size=2)
  groups = [stream.recv().env_id.tolist() for _ in range(3)]
  assert groups == [[0, 1], [2, 3], [4]]
  # Mixed groups: the first is complete only with the second call.
  stream.send(np.array([2, 3, 0], np.int32), np.array([3, 0, 2], np.int32))
  stream.send(np.array([1], np.int32), np.array([1], np.int32))
  second, first = stream.recv(), stream.recv()
  assert (second.env_id.tolist(), first.env_id.tolist()) == ([2, 3], [0, 1])
  assert second.observation[:, 2].tolist() == [0, 2]
  assert first.observation[:, 2].tolist() == [3, 1]


def test_dict_observations_follow_the_spec_without_the_text():
  section = streams.toy('seeded')
  spec = gymnasium_stream.make_spec(section)
  assert spec == base.StreamSpec(
    observation={
      'inner': {
        'a': types.ArraySpec((2, 2), np.dtype('uint8')),
        'z': types.ArraySpec((), np.dtype('int32')),
      },
      'noise': types.ArraySpec((), np.dtype('float32')),
    },
    action=types.discrete(4),
    action_repeat=1,
    name='tests.envs.toys:seeded',
  )
  output = streams.make(section, 3).recv()
  streams.assert_fits(output, spec)
  assert list(output.observation) == ['inner', 'noise']


def test_environments_are_seeded_one_by_one():
  def noise(seed: int) -> np.ndarray:
    stream = streams.make(streams.toy('seeded'), 4, 2, seed)
    return np.concatenate([stream.recv().observation['noise'] for _ in '12'])

  chex.assert_trees_all_equal(noise(3), noise(3))
  chex.assert_trees_all_equal(noise(3)[1:], noise(4)[:-1])
  assert len(set(noise(3).tolist())) == 4


def test_received_arrays_are_the_callers():
  stream = streams.make(streams.toy('scripted'), 2)
  output = stream.recv()
  copy = types.EnvOutput(*(np.copy(x) for x in output))
  for _ in range(4):
    stream.send(np.zeros(2, np.int32), np.arange(2))
    stream.recv()
  chex.assert_trees_all_equal(output, copy)
  output.env_id[:] = 9
  stream.send(np.zeros(2, np.int32), np.arange(2))
  assert stream.recv().env_id.tolist() == [0, 1]


def test_making_a_stream_warns_of_nothing():
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    streams.make(streams.toy('scripted'), 2).close()


@pytest.mark.parametrize(
  ('factory', 'reason'),
  [
    ('scripted', 'must be module:function'),
    ('tests.envs.toys:', 'must be module:function'),
    ('no_such_module:make', 'there is no module no_such_module,'),
    ('tests.envs.toys:absent', 'has no function absent'),
    ('tests.envs.toys:not_an_environment', 'must return a gymnasium.Env'),
  ],
)
def test_unusable_factories_are_refused(factory: str, reason: str):
  with pytest.raises(ValueError, match=reason) as caught:
    gymnasium_stream.make_spec(streams.config('Toy-v0', factory=factory))
  assert f'--config.env.factory={factory}' in str(caught.value)


def test_id_of_gymnasiums_is_made_with_its_options():
  section = streams.config('gymnasium:FrozenLake-v1', max_episode_steps=7)
  section.options.update(is_slippery=False, map_name='8x8')
  spec = gymnasium_stream.make_spec(section)
  assert (spec.name, spec.action.num_values) == ('gymnasium:FrozenLake-v1', 4)
  stream = streams.make(section)
  outputs = streams.roll(stream, np.full((9, 1), 3, np.int32))
  # At the upper edge only the time changes.
  assert stream.take_episodes() == [base.Episode(0, 0.0, 7, 7, False)]
  assert streams.column(outputs, 'observation') == [0] * 9


@pytest.mark.parametrize(
  ('env_id', 'values', 'reason'),
  [
    (
      'CartPoel-v1',
      {},
      'the nearest are gymnasium:CartPole-v1, gymnasium:CartPole-v0, ',
    ),
    # Gymnasium would import these.
    ('tests.envs.toys:CartPole-v1', {}, 'has not registered such'),
    ('GymV26Environment-v0', {}, 'has not registered such'),
    ('CartPole-v1', {'frame_skip': 2}, 'frame_skip: is an option of EnvPool'),
    ('CartPole-v1', {'options': {'x': 1}}, "cannot make it: .*argument 'x'"),
  ],
)
def test_unusable_ids_of_gymnasiums_are_refused(
  env_id: str, values: dict[str, Any], reason: str
):
  with pytest.raises(ValueError, match=reason):
    gymnasium_stream.make_spec(streams.config(f'gymnasium:{env_id}', **values))


def test_made_environment_has_its_own_name():
  section = streams.config('CartPole-v1', factory='gymnasium:make')
  section.factory_kwargs = {'id': 'Acrobot-v1'}
  assert gymnasium_stream.make_spec(section).name == 'Acrobot-v1'


@pytest.mark.parametrize('processes', [0, 2])
@pytest.mark.parametrize(('value', 'word'), [(np.nan, 'nan'), (np.inf, 'inf')])
def test_observation_that_is_not_finite_names_the_environment(
  value: float, word: str, processes: int
):
  section = streams.toy('spoiled', value=value)
  section.processes = processes
  stream = streams.make(section, 3)
  with pytest.raises(
    base.EnvironmentFailed,
    match=rf'^Environment 0 of tests\.envs\.toys:spoiled gave an observation '
    rf'that is not finite \({word}\)',
  ):
    streams.roll(stream, ACTIONS.repeat(3, axis=1))
  stream.close()


@pytest.mark.parametrize('processes', [0, 2])
@pytest.mark.parametrize('kind', toys.ACTION_SPACES)
def test_actions_of_any_shape_reach_their_environments(
  kind: str, processes: int
):
  section = streams.toy('echo', kind=kind)
  section.processes = processes
  stream = streams.make(section, 3)
  spec = stream.spec.action
  actions = spec.sample(np.random.default_rng(0), 3, 3)
  outputs = streams.roll(stream, actions)
  stream.close()
  for action, output in zip(actions, outputs[1:], strict=False):
    streams.assert_fits(output, stream.spec)
    np.testing.assert_array_equal(output.observation, action)


def test_continuous_actions_are_clipped():
  stream = streams.make(streams.toy('echo', kind='box'))
  outputs = streams.roll(stream, np.full((2, 1, 2, 2), 7.0, np.float32))
  np.testing.assert_array_equal(outputs[1].observation, 1.0)


def test_text_observations_are_refused_where_they_are_not_dropped():
  section = streams.toy('seeded')
  section.drop_observations = ()
  with pytest.raises(ValueError, match='not Text'):
    gymnasium_stream.make_spec(section)


def test_options_of_envpool_are_refused():
  section = streams.toy('scripted')
  section.frame_skip = 4
  with pytest.raises(ValueError, match='frame_skip: is an option of EnvPool'):
    gymnasium_stream.make_spec(section)


def test_failure_of_an_environment_reaches_the_receiver(
  monkeypatch: pytest.MonkeyPatch,
):
  def fail(self: toys.Scripted, action: Any) -> None:
    raise RuntimeError(f'action {action}')

  monkeypatch.setattr(toys.Scripted, 'step', fail)
  stream = streams.make(streams.toy('scripted'))
  stream.send(np.array([3], np.int32), stream.recv().env_id)
  with pytest.raises(RuntimeError, match='action 3'):
    stream.recv()
