"""Runs in environments that fail at an illegal action."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import (
  dqn_cartpole,
  dyna_q_cartpole,
  ppo_cartpole,
  pqn_cartpole,
  r2d2_cartpole,
  vtrace_cartpole,
)
from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress, workdir
from tests import runs
from tests.actors import threads
from tests.demonstrations import recording_runs

_REPLAY = {'replay__min_size': 64, 'replay__samples_per_insert': 0.5}
_AGENTS = {
  'vtrace': (vtrace_cartpole.get_config, {}),
  'ppo': (ppo_cartpole.get_config, {'epochs': 2, 'minibatches': 2}),
  'r2d2': (r2d2_cartpole.get_config, {**_REPLAY, 'burn_in': 2}),
  'dqn': (dqn_cartpole.get_config, {**_REPLAY, 'unroll_length': 1}),
  'dyna_q': (dyna_q_cartpole.get_config, {**_REPLAY, 'unroll_length': 1}),
  'pqn': (pqn_cartpole.get_config, {'epochs': 2, 'minibatches': 2}),
}


def _config(name, factory, frames=3000, **kwargs):
  make, values = _AGENTS[name]
  small = {
    'env__num_envs': 16,
    'batch_size': 16,
    'num_eval_envs': 1,
    'total_env_frames': frames,
    'env__factory': f'tests.envs.masked:{factory}',
    'env__factory_kwargs': kwargs,
  }
  return runs.tiny(make, **{**small, **values})


def _check(config, workdir):
  summary = runs.Run(config, workdir).train()
  assert summary['status'] == 'finished' and summary['updates'] > 5
  assert summary['env_steps'] >= config.total_env_frames
  # Each step pays 1 if its action was legal.
  runs.check_cartpole_episodes(workdir)
  for row in runs.rows(workdir):
    # No value of an illegal action is in a loss or a metric.
    assert all(
      abs(float(x)) < 1e5 for k, x in row.items() if k.startswith('losses/')
    )


@pytest.mark.parametrize('factory', ['make', 'make_on_device'])
@pytest.mark.parametrize('name', _AGENTS)
def test_no_illegal_action_in_training(name, factory, tmp_path):
  _check(_config(name, factory), tmp_path)


@pytest.mark.parametrize(
  ('name', 'factory', 'kwargs'),
  [
    ('vtrace', 'make', {}),
    ('vtrace', 'make', {'hybrid': True}),
    pytest.param('ppo', 'make', {'hybrid': True}, marks=pytest.mark.slow),
    ('ppo', 'make_on_device', {}),
  ],
)
def test_several_choices_with_a_mask_of_each(name, factory, kwargs, tmp_path):
  config = _config(name, factory, 2000, several=True, **kwargs)
  config.network.use_action_mask = config.network.use_previous_action = True
  config.network.lstm_size, config.network.frame_stack = 4, 2
  _check(config, tmp_path)
  config.env.action_mask = ''
  with pytest.raises(
    workdir.WorkdirError,
    match=r"'action_mask'.* ''; give the same .*action_mask\.$",
  ):
    runs.Run(config, tmp_path).train()


def test_a_mask_of_the_info_with_actors_and_evaluation(tmp_path):
  config = _config('vtrace', 'make', 2000, place='info')
  config.env.action_mask = 'action_mask'
  config.env.num_envs, config.actors.max_envs = 0, 4
  config.batch_size = 4
  allowed = ('--allow_factory=tests.envs.masked:make',)
  run = runs.Run(config, tmp_path)
  with threads.acting(run.system, 4, allowed):
    assert run.train()['status'] == 'finished'
  options = scoring.EvaluationOptions(4, num_envs=2, allowed=allowed)
  evaluation = scoring.evaluate(tmp_path, options, progress.ProgressLine())
  assert [e.length for e in evaluation.episodes] == evaluation.returns.tolist()


@pytest.mark.parametrize('factory', ['make', 'make_on_device'])
def test_a_step_without_a_legal_choice_ends_the_run(factory, tmp_path):
  run = runs.Run(_config('vtrace', factory, stuck_after=2), tmp_path)
  with pytest.raises(
    Exception, match=r'Environment \d+ of .* gave an action m'
  ):
    run.train()


def policy(env_spec, seed):
  """A policy of demonstrations: the last legal action."""
  del env_spec, seed
  return lambda output: (
    3 - np.argmax(output.observation['action_mask'][:, ::-1], axis=-1)
  )


@pytest.mark.parametrize(
  ('name', 'factory', 'teacher'),
  [
    ('r2d2', 'make', 'policy'),
    ('dyna_q', 'make_on_device', 'policy'),
    pytest.param('r2d2', 'make', 'same network', marks=pytest.mark.slow),
    pytest.param(
      'r2d2', 'make_on_device', 'other network', marks=pytest.mark.slow
    ),
  ],
)
def test_demonstrations_have_masks(name, factory, teacher, tmp_path):
  config = _config(name, factory, 2000)
  options = {'episodes': 8, 'num_envs': 2}
  if teacher == 'policy':
    options['policy'] = f'{__name__}:policy'
  else:
    runs.Run(config, tmp_path / 'teacher').train()
    options['teacher_workdir'] = tmp_path / 'teacher'
    options['allowed'] = (f'--allow_factory=tests.envs.masked:{factory}',)
  if teacher == 'other network':
    config.network.use_action_mask = True
  recording_runs.record(config, tmp_path / 'demos', **options)
  unroll, _ = recording_runs.read(tmp_path / 'demos', config)
  mask = unroll.steps.observation['action_mask']
  action = unroll.steps.agent_output.action
  legal = np.take_along_axis(mask, action[..., None], -1)[..., 0] != 0
  assert legal[unroll.steps.step_type != types.StepType.LAST].all()
  assert 0 < mask.mean() < 1
  if teacher == 'policy':
    np.testing.assert_array_equal(
      action, 3 - np.argmax(mask[..., ::-1] != 0, axis=-1)
    )
  config.demonstrations.path = str(tmp_path / 'demos')
  config.demonstrations.fraction = 0.25
  _check(config, tmp_path / 'run')
  last = runs.rows(tmp_path / 'run')[-1]
  assert float(last['demonstrations/sampled_unrolls']) > 0
