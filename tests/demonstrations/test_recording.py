"""Tests for seedrl_jax/demonstrations/recording.py."""

import itertools

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.demonstrations import teacher
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.envs import gymnasium_stream
from tests import runs
from tests.demonstrations import recording_runs
from tests.evaluation import evaluation_runs

_FIRST, _LAST = types.StepType.FIRST, types.StepType.LAST


def _columns(unroll: types.Unroll, env_id: int) -> list[int]:
  return np.flatnonzero(unroll.env_id == env_id).tolist()


@pytest.fixture(scope='module', name='scripted')
def scripted_fixture(tmp_path_factory):
  """Six episodes of a policy, all three kinds in both environments."""
  folder = tmp_path_factory.mktemp('demos') / 'scripted'
  config = recording_runs.student()
  recording = recording_runs.record(
    config, folder, episodes=6, num_envs=2, seed=1
  )
  return recording, *recording_runs.read(folder, config)


def test_a_policys_play_is_recorded_step_by_step(scripted):
  _, unroll, priorities = scripted
  steps = unroll.steps
  chex.assert_shape(steps.reward, (recording_runs.STEPS, None))
  _, step, last_action = np.moveaxis(steps.observation, -1, 0)
  first, last = steps.step_type == _FIRST, steps.step_type == _LAST
  np.testing.assert_array_equal(first, step == 0)
  np.testing.assert_array_equal(steps.reward, step)
  np.testing.assert_array_equal(steps.agent_output.action, (step + 1) % 4)
  # LAST's action is recorded, although it is ignored.
  np.testing.assert_array_equal(
    steps.previous_action, np.where(first, 0, last_action)
  )
  np.testing.assert_array_equal(last[:-1], first[1:])
  kind = steps.observation[..., 0] % 3
  # The second kind of episode is truncated only.
  np.testing.assert_array_equal(steps.discount == 0, last & (kind != 1))
  assert (steps.parameter_version == types.NO_VERSION).all()
  # A policy's priorities and values say nothing.
  assert not steps.agent_output.q_values.any()
  np.testing.assert_array_equal(priorities, 1)


def test_every_transition_is_trained_on(scripted):
  recording, unroll, _ = scripted
  trained = slice(recording_runs.BURN_IN, -1)
  seen = unroll.steps.observation[trained, :, :2].reshape(-1, 2)
  # Per environment 3 + 5 + 4 transitions and three FIRSTs, by fours.
  assert recording.manifest.sequences == unroll.env_id.size == 2 * 4
  expected = {(e, s) for e, n in enumerate((3, 5, 4)) for s in range(n + 1)}
  assert {(int(e), int(s)) for e, s in seen} == expected


def test_single_transitions_are_recorded_without_resets(tmp_path):
  config = recording_runs.student(unroll_length=1, burn_in=0)
  recording = recording_runs.record(
    config, tmp_path / 'demos', episodes=6, num_envs=2, seed=1
  )
  assert recording.manifest.sequences == 2 * (3 + 5 + 4)


def test_frames_are_right_and_the_memory_is_zero(scripted):
  _, unroll, _ = scripted
  core = unroll.initial_core
  chex.assert_trees_all_equal(core.lstm, jax.tree.map(np.zeros_like, core.lstm))
  (frames,) = core.frames
  starts_inside = 0
  for env_id in (0, 1):
    columns = _columns(unroll, env_id)
    for earlier, column in itertools.pairwise(columns):
      # The two frames before are in the sequence before.
      place = recording_runs.UNROLL
      before = unroll.steps.observation[place - 2 : place, earlier]
      same = before[:, 0] == unroll.steps.observation[0, column, 0]
      expected = np.where(same[:, None], before, 0).reshape(-1)
      if unroll.steps.step_type[0, column] != _FIRST:
        starts_inside += 1
        np.testing.assert_array_equal(frames[column], expected)
  assert starts_inside


def test_report_and_manifest_have_the_figures(scripted):
  recording, *_ = scripted
  assert sorted(recording.returns) == [6, 6, 10, 10, 15, 15]
  text, _, path = recording.report.rpartition(' in ')
  assert 'recording_runs:by_step: kept 6 of 6 episodes' in text
  assert 'return 10.33 ± 1.65' in text
  assert text.endswith('8 sequences')
  manifest = folder_lib.read_manifest(path)
  assert manifest == recording.manifest
  assert manifest.env_id == 'tests.envs.toys:scripted'
  assert manifest.episodes == 6
  assert manifest.mean_return == pytest.approx(31 / 3)
  assert ['env_id', [], '<i4'] in manifest.unroll['leaves']
  assert manifest.unroll['stride'] == recording_runs.UNROLL


def test_policy_that_cannot_wrap_closes_the_environments(tmp_path, monkeypatch):
  def fail(*args) -> None:
    raise ValueError('no policy')

  monkeypatch.setattr(teacher, 'ScriptedStream', fail)
  stream = gymnasium_stream.GymnasiumStream
  closes = evaluation_runs.count_closes(monkeypatch, stream)
  with pytest.raises(ValueError, match='no policy'):
    recording_runs.record(recording_runs.student(), tmp_path / 'out')
  assert closes


def test_only_good_episodes_are_kept(tmp_path):
  config = recording_runs.student()
  recording = recording_runs.record(
    config, tmp_path / 'out', episodes=6, num_envs=2, min_return=10.0
  )
  assert sorted(recording.returns) == [10, 10, 15, 15]
  unroll, _ = recording_runs.read(tmp_path / 'out', config)
  steps = unroll.steps
  assert set(np.unique(steps.observation[..., 0])) == {1, 2}
  # The kept episodes are joined.
  last = steps.step_type == _LAST
  np.testing.assert_array_equal(last[:-1], (steps.step_type == _FIRST)[1:])
  # 5 + 4 transitions and two FIRSTs make three sequences each.
  assert recording.manifest.sequences == 2 * 3


def test_nothing_good_is_refused_and_leaves_no_folder(tmp_path):
  with pytest.raises(ValueError, match=r'--min_return=16\.0: none of the 3'):
    recording_runs.record(
      recording_runs.student(), tmp_path / 'out', episodes=3, min_return=16.0
    )
  assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope='module', name='r2d2_teacher')
def r2d2_teacher_fixture(tmp_path_factory):
  """A checkpoint of R2D2 teaches R2D2."""
  folder = tmp_path_factory.mktemp('r2d2_teacher')
  config = recording_runs.student()
  state = evaluation_runs.initial_state(config)
  evaluation_runs.save_states(folder / 'teacher', config, state)
  recording = recording_runs.record(
    config,
    folder / 'out',
    teacher_workdir=folder / 'teacher',
    episodes=6,
    num_envs=2,
  )
  return (
    config,
    _agent(config).acting_params(state),
    recording,
    *recording_runs.read(folder / 'out', config),
  )


def _agent(config) -> agents.Agent:
  config = config.copy_and_resolve_references()
  config.num_eval_envs = 2
  return agents.load_agent(config, env_factory.make_env_spec(config))


def test_the_same_agents_values_states_and_priorities_are_recorded(
  r2d2_teacher,
):
  config, params, recording, unroll, priorities = r2d2_teacher
  assert recording.manifest.made_by.startswith('checkpoint 1 of ')
  assert recording.manifest.made_by.endswith('(r2d2)')
  agent = _agent(config)
  core = unroll.initial_core
  inputs = types.agent_input(unroll.steps)
  ids = 4 + unroll.env_id
  act = jax.jit(agent.act)
  states = [core]
  for t in range(recording_runs.STEPS):
    step = jax.tree.map(lambda x, t=t: x[t], inputs)
    output, core = act(params, jax.random.PRNGKey(0), step, core, ids)
    states.append(core)
    np.testing.assert_allclose(
      output.q_values, unroll.steps.agent_output.q_values[t], rtol=1e-5
    )
  for env_id in (0, 1):
    columns = _columns(unroll, env_id)
    for earlier, column in itertools.pairwise(columns):
      chex.assert_trees_all_close(
        jax.tree.map(lambda x, c=earlier: x[c], states[recording_runs.UNROLL]),
        jax.tree.map(lambda x, c=column: x[c], unroll.initial_core),
        rtol=1e-5,
      )
  assert all(x.any() for x in jax.tree.leaves(unroll.initial_core))
  expected = agent.initial_priorities(unroll.steps._replace(observation=()))
  np.testing.assert_allclose(priorities, expected, rtol=1e-5)
  assert len(set(priorities.round(6))) > 1


def _vtrace(factory: str = 'tests.envs.toys:scripted'):
  return evaluation_runs.config(factory)


def test_another_agent_teaches_by_its_actions(tmp_path):
  evaluation_runs.save(tmp_path / 'teacher', _vtrace(), 1.0)
  config = recording_runs.student()
  recording_runs.record(
    config,
    tmp_path / 'out',
    teacher_workdir=tmp_path / 'teacher',
    episodes=3,
    num_envs=1,
  )
  unroll, priorities = recording_runs.read(tmp_path / 'out', config)
  # V-trace prefers the last of four actions.
  assert (unroll.steps.agent_output.action == 3).all()
  assert not unroll.steps.agent_output.q_values.any()
  np.testing.assert_array_equal(priorities, 1)
  memory = jax.tree.leaves(unroll.initial_core.lstm)
  assert not any(x.any() for x in memory)
  assert unroll.initial_core.frames[0].any()


def test_a_run_without_core_and_overlap_can_learn_too(tmp_path):
  config = _vtrace()
  config.unroll_length = 4
  recording = recording_runs.record(config, tmp_path / 'out', episodes=1)
  # FIRST, three transitions, and FIRST again.
  unroll, _ = recording_runs.read(tmp_path / 'out', config)
  assert recording.manifest.sequences == 1
  np.testing.assert_array_equal(
    unroll.steps.observation[:, 0, 1], [0, 1, 2, 3, 0]
  )


def test_a_checkpoint_with_actions_of_any_shape_teaches(tmp_path):
  config = runs.tiny(**evaluation_runs.echo('box'), unroll_length=4)
  state = evaluation_runs.initial_state(config)
  evaluation_runs.save_states(tmp_path / 'teacher', config, state)
  recording_runs.record(
    config,
    tmp_path / 'out',
    teacher_workdir=tmp_path / 'teacher',
    episodes=2,
    allowed=evaluation_runs.ALLOWED,
  )
  steps = recording_runs.read(tmp_path / 'out', config)[0].steps
  spec = env_factory.make_env_spec(config).action
  action = steps.agent_output.action
  assert action.dtype == steps.previous_action.dtype == spec.dtype
  largest = np.reshape(spec.maximum, spec.shape)
  np.testing.assert_array_equal(action, np.broadcast_to(largest, action.shape))
  assert (steps.agent_output.value == 1).all()


@pytest.mark.parametrize(
  'options,message',
  [
    ({'policy': ''}, 'Give either --teacher_workdir'),
    ({'out': ''}, '--out is missing'),
    ({'policy': 'by_step'}, '--policy=by_step: must be module:function'),
    (
      {'policy': 'tests.demonstrations.recording_runs:unknown_action'},
      r'unknown_action: it must return int32\[1\] from 0 to 3; it returned',
    ),
    ({'teacher_workdir': '/nowhere', 'policy': ''}, 'holds no run'),
  ],
)
def test_refusals_are_one_sentence(tmp_path, options, message):
  options = {'out': tmp_path / 'out', 'episodes': 1, **options}
  with pytest.raises(ValueError, match=message) as caught:
    recording_runs.record(recording_runs.student(), **options)
  assert '\n' not in str(caught.value)
  assert not (tmp_path / 'out').exists()


def test_a_teacher_of_another_environment_is_refused(tmp_path):
  other = 'tests.evaluation.evaluation_runs:chooser'
  evaluation_runs.save(tmp_path / 'teacher', _vtrace(other), 1.0)
  with pytest.raises(ValueError, match=f'on {other}, and .*toys:scripted'):
    recording_runs.record(
      recording_runs.student(),
      tmp_path / 'out',
      teacher_workdir=tmp_path / 'teacher',
      allowed=evaluation_runs.ALLOWED,
    )


def test_a_server_without_the_table_is_refused(tmp_path):
  config = recording_runs.student(replay__address='localhost:1')
  with pytest.raises(
    ValueError, match=r'without --config\.demonstrations.frac'
  ):
    recording_runs.record(config, tmp_path / 'out')
