"""Tests of Gymnasium's environments, in this process and others."""

import os
import pathlib
import select
import signal
import subprocess
import sys
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base, factory, processes
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
    base.Episode(0, 6.0, 3, terminated=True),
    base.Episode(0, 15.0, 5, terminated=False),
    base.Episode(0, 10.0, 4, terminated=True),
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
  spec = factory.make_spec(section)
  assert spec == types.StreamSpec(
    observation={
      'inner': {
        'a': types.ArraySpec((2, 2), np.dtype('uint8')),
        'z': types.ArraySpec((), np.dtype('int32'), (range(9),)),
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


@pytest.mark.parametrize('count', [0, 2])
def test_dict_of_floats_is_joined_in_the_order_of_its_keys(count: int):
  section = streams.toy('parts', count)
  stream = streams.make(section, 3)
  spec = types.ArraySpec((3,), np.dtype(np.float32))
  assert factory.make_spec(section).observation == spec
  outputs = streams.roll(stream, ACTIONS[:5].repeat(3, axis=1))
  stream.close()
  for output in outputs:
    streams.assert_fits(output, stream.spec)
  # Episode, action and step.
  seen = streams.column(outputs, 'observation', env=2)
  assert seen == [[0, -1, 0], [0, 0, 1], [0, 1, 2], [0, 2, 3], [1, -1, 0]]


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('scripted', 'must be module:function'),
    ('tests.envs.toys:absent', 'has no function absent'),
    ('tests.envs.toys:not_an_environment', 'must return a gymnasium.Env'),
  ],
)
def test_unusable_factories_are_refused(name: str, reason: str):
  with pytest.raises(ValueError, match=reason) as caught:
    factory.make_spec(streams.config('Toy-v0', factory=name))
  assert f'--config.env.factory={name}' in str(caught.value)


def test_id_of_gymnasiums_is_made_with_its_options():
  section = streams.config('gymnasium:FrozenLake-v1', max_episode_steps=7)
  section.options.update(is_slippery=False, map_name='8x8')
  spec = factory.make_spec(section)
  assert (spec.name, spec.action.num_values) == ('gymnasium:FrozenLake-v1', 4)
  stream = streams.make(section)
  outputs = streams.roll(stream, np.full((9, 1), 3, np.int32))
  # At the upper edge only the time changes.
  assert stream.take_episodes() == [base.Episode(0, 0.0, 7, False)]
  assert streams.column(outputs, 'observation') == [0] * 9


@pytest.mark.parametrize(
  ('env_id', 'values', 'reason'),
  [
    ('CartPoel-v1', {}, 'the nearest are gymnasium:CartPole-v1, gymnasium:'),
    # Gymnasium would import these.
    ('tests.envs.toys:CartPole-v1', {}, 'has not registered such'),
    ('GymV26Environment-v0', {}, 'has not registered such'),
    ('CartPole-v1', {'frame_skip': 2}, 'frame_skip: is an option of EnvPool'),
    ('CartPole-v1', {'options': {'x': 1}}, "cannot be made: .*argument 'x'"),
  ],
)
def test_unusable_ids_of_gymnasiums_are_refused(
  env_id: str, values: dict[str, Any], reason: str
):
  with pytest.raises(ValueError, match=reason):
    factory.make_spec(streams.config(f'gymnasium:{env_id}', **values))


def test_made_environment_has_its_own_name():
  section = streams.config('CartPole-v1', factory='gymnasium:make')
  section.factory_kwargs = {'id': 'Acrobot-v1'}
  assert factory.make_spec(section).name == 'Acrobot-v1'


@pytest.mark.parametrize(
  ('kind', 'count'),
  [('discrete', 0), ('joint', 2), ('binary', 0), ('box', 0), ('box', 2)],
)
def test_actions_of_any_shape_reach_their_environments(kind: str, count: int):
  stream = streams.make(streams.toy('echo', count, kind=kind), 3)
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


@pytest.mark.parametrize(
  ('name', 'values', 'reason'),
  [
    ('seeded', {'drop_observations': ()}, 'not Text'),
    ('scripted', {'frame_skip': 4}, 'frame_skip: is an option of EnvPool'),
  ],
)
def test_unusable_values_are_refused(
  name: str, values: dict[str, Any], reason: str
):
  section = streams.toy(name)
  section.update(values)
  with pytest.raises(ValueError, match=reason):
    factory.make_spec(section)


@pytest.mark.parametrize(
  ('value', 'count'), [(np.nan, 0), (np.inf, 0), (np.inf, 2)]
)
def test_observation_that_is_not_finite_names_the_environment(
  value: float, count: int
):
  stream = streams.make(streams.toy('spoiled', count, value=value), 3)
  with pytest.raises(
    base.EnvironmentFailed,
    match=rf'^Environment 0 of tests\.envs\.toys:spoiled gave an observation '
    rf'that is not finite \({value}\)',
  ):
    streams.roll(stream, ACTIONS.repeat(3, axis=1))
  stream.close()


@pytest.mark.parametrize('count', [0, 2])
@pytest.mark.parametrize(
  ('kind', 'text'),
  [
    ('nan', 'gave a reward of nan, which is not a number from -1,000,000'),
    ('shape', r'gave an observation of shape \(2,\) instead of \(3,\)'),
    ('old', 'returned 4 values from step instead of 5 values'),
  ],
)
def test_unusable_step_names_the_environment(kind: str, text: str, count: int):
  stream = streams.make(streams.toy('odd', count, kind=kind), 3)
  with pytest.raises(
    base.EnvironmentFailed,
    match=rf'^Environment 0 of tests\.envs\.toys:odd {text}',
  ) as caught:
    streams.roll(stream, ACTIONS.repeat(3, axis=1))
  assert '\n' not in str(caught.value)
  stream.close()


def test_reward_may_be_an_array_of_one_number():
  stream = streams.make(streams.toy('odd', kind='array'))
  outputs = streams.roll(stream, ACTIONS[:4])
  assert streams.column(outputs, 'reward') == [0, 1, 2, 3]


@pytest.mark.parametrize('env_id', range(4))
def test_each_environment_of_each_group_is_compared_with_its_box(
  env_id: int, caplog, monkeypatch
):
  stream = streams.make(streams.toy('scripted'), 4, 2)
  env = stream._groups[env_id // 2].envs[env_id % 2]
  monkeypatch.setattr(env, '_observe', lambda _: np.full(3, -7.0))
  streams.roll(stream, ACTIONS.repeat(2, axis=1))
  # Only once in a stream.
  (text,) = (record.message for record in caplog.records)
  assert text == (
    f'Environment {env_id} of tests.envs.toys:scripted gave an observation '
    'with -7.0, which is not from -1.0 to 1e+16: correct it or its space. The '
    'run goes on.'
  )
  stream.close()


def test_discrete_observation_outside_its_range_fails():
  stream = streams.make(streams.toy('beyond'), 2)
  with pytest.raises(
    base.EnvironmentFailed,
    match=r"^Environment 0 .* for the key 'step' with 3, ",
  ):
    streams.roll(stream, ACTIONS.repeat(2, axis=1))


@pytest.mark.parametrize('count', [0, 2])
def test_environments_are_used_in_the_thread_that_made_them(count: int):
  stream = streams.make(streams.toy('bound', count), 4, 2)
  streams.roll(stream, ACTIONS.repeat(2, axis=1))
  # Raises what the environments do.
  stream.close()


def test_environments_are_drawn_in_their_thread():
  stream = factory.make_stream(streams.toy('bound'), 1, 1, 1, rendered=True)
  stream.recv()
  assert stream.render(0).shape == (2, 2, 3)
  stream.close()


_ACTIONS = np.random.default_rng(0).integers(0, 4, (60, 7), np.int32)


def _pids(stream: Any) -> list[int]:
  return [p.pid for group in stream._groups for p in group._processes]


def _is_there(pid: int) -> bool:
  return pathlib.Path(f'/proc/{pid}').exists()


def _play(stream: Any) -> list[Any]:
  outputs = []
  for action in _ACTIONS:
    outputs.append(stream.recv())
    ids = outputs[-1].env_id
    stream.send(action[ids], ids)
  stream.close()
  return [outputs, stream.take_episodes()]


@pytest.mark.parametrize('name', ['scripted', 'seeded'])
def test_steps_are_those_of_environments_in_this_process(name: str):
  here = _play(streams.make_seven(name, 0))
  there = _play(streams.make_seven(name, 4))
  chex.assert_trees_all_equal(here[0], there[0])
  assert here[1] == there[1] != []


def test_processes_have_no_jax_and_outlive_signals_to_their_group():
  stream = streams.make_seven('telling', 1)
  # Whether JAX is imported, and restricted to the CPU.
  assert stream.recv().observation.tolist() == [[0, 1]] * 5
  assert stream.recv().observation.tolist() == [[0, 1]] * 2
  for pid in _pids(stream):
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
  stream.send(np.zeros(5, np.int32), np.arange(5, dtype=np.int32))
  assert len(stream.recv().env_id) == 5
  pids = _pids(stream)
  # Two batches have at least one each.
  assert len(pids) == 2
  stream.close()
  assert not any(map(_is_there, pids))


def test_failure_of_an_environment_reaches_the_receiver():
  stream = streams.make_seven('failing', 0, how='step')
  with pytest.raises(toys.UnpicklableError, match='Unpicklable: step'):
    _play(stream)
  # It does not hang.
  assert stream._running() == []


@pytest.mark.parametrize('how', ['step', 'make'])
def test_failure_in_a_process_comes_with_its_traceback(how: str):
  stream = streams.make_seven('failing', 2, how=how)
  with pytest.raises(base.EnvironmentFailed) as caught:
    _play(stream)
  assert f'Unpicklable: {how}' in str(caught.value)
  *_, last = str(caught.value).splitlines()
  assert last.startswith('An environment of ') and f'able: {how}.' in last
  stream.close()


def test_environment_that_cannot_be_closed_leaves_no_other_open(monkeypatch):
  stream = streams.make_seven('scripted', 0)
  first, *_, last = (e for group in stream._groups for e in group.envs)
  closed = []
  monkeypatch.setattr(first, 'close', lambda: closed.append(0))

  def fail():
    raise OSError('cannot be closed')

  monkeypatch.setattr(last, 'close', fail)
  with pytest.raises(OSError, match='cannot be closed'):
    stream.close()
  assert closed == [0]
  stream.close()


def test_process_that_cannot_be_started_leaves_no_other(monkeypatch):
  start, at_exit = processes._CONTEXT.Process.start, []
  monkeypatch.setattr(processes.atexit, 'register', at_exit.append)

  def start_one(process):
    monkeypatch.setattr(processes._CONTEXT.Process, 'start', fail)
    start(process)

  def fail(process):
    raise OSError('no more processes')

  monkeypatch.setattr(processes._CONTEXT.Process, 'start', start_one)
  with pytest.raises(ValueError, match='no more processes'):
    streams.make_seven('scripted', 4)
  (close,) = at_exit
  (process,) = close.__self__._processes
  close()
  assert not _is_there(process.pid)


def test_killed_process_is_noticed():
  stream = streams.make_seven('scripted', 2)
  first = stream.recv()
  os.kill(_pids(stream)[0], signal.SIGKILL)
  with pytest.raises(base.EnvironmentFailed, match=r'\(exit code -9'):
    stream.send(np.zeros(5, np.int32), first.env_id)
    stream.recv()
    stream.recv()
  stream.close()
  assert not any(map(_is_there, _pids(stream)))


_PARENT = """
import sys
if __name__ == '__main__':
  from tests.envs import streams, test_gymnasium_stream as test
  stream = streams.make_seven('scripted', 2)
  stream.recv()
  print(*test._pids(stream), flush=True)
  sys.stdin.read()
"""


def test_processes_end_with_a_killed_parent(tmp_path: Any):
  script = tmp_path / 'parent.py'
  script.write_text(_PARENT)
  with subprocess.Popen(
    [sys.executable, str(script)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    env={**os.environ, 'PYTHONPATH': ':'.join(sys.path)},
    text=True,
  ) as parent:
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    handles = [os.pidfd_open(pid) for pid in pids]
    parent.kill()
  assert len(handles) == 2
  for handle in handles:
    # Readable once the process has ended.
    assert select.select([handle], [], [], 60.0)[0]
    os.close(handle)


def test_processes_are_not_for_envpool():
  section = streams.config('CartPole-v1', processes=2)
  with pytest.raises(ValueError, match=r'env\.processes=2: is for .*Gymnasium'):
    streams.make(section, 2)


def test_integers_beyond_32_bits_do_not_wrap():
  stream = streams.make(streams.toy('Stamp', high=2**40))
  np.testing.assert_array_equal(stream.recv().observation, [[3e9, 1]])
  stream.close()
  stream = streams.make(streams.toy('Stamp', high=100))
  with pytest.raises(base.EnvironmentFailed, match='with 3000000000, which'):
    stream.recv()
  stream.close()
