"""Runs of several tasks."""

import pytest

from seedrl_jax.configs import (
  a2c_cartpole,
  ppo_cartpole,
  pqn_cartpole,
  r2d2_cartpole,
  vtrace_cartpole,
)
from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress, workdir
from tests import runs
from tests.actors import threads

_GRIDS = tuple(
  f'MiniGrid-{x}-v0' for x in ('Empty-5x5', 'LavaGapS5', 'DoorKey-5x5')
)
_CHAINS = 'gymnax:MemoryChain-bsuite', 'gymnax:UmbrellaChain-bsuite'


def _config(make, names, **values):
  small = {
    'env__tasks': names,
    'env__num_envs': 8,
    'num_eval_envs': 3,
    'total_env_frames': 4000,
    'network__use_task': True,
    'batch_size': 8,
  }
  return runs.tiny(make, **{**small, **values})


def _returns(folder, group, names):
  """Returns how many rows have a return of each task."""
  rows = runs.rows(folder)
  return [sum(bool(row[f'{group}/return/{x}']) for row in rows) for x in names]


def test_actors_bring_a_task_and_evaluation_has_all(tmp_path):
  config = _config(
    vtrace_cartpole.get_config,
    _GRIDS,
    network__popart=True,
    network__lstm_size=4,
    actors__max_envs=4,
    # Actors bring another task than the first.
    env__num_envs=4,
  )
  run = runs.Run(config, tmp_path)
  with threads.acting(run.system, 4, task=_GRIDS[2]):
    assert run.train()['status'] == 'finished'
  assert all(_returns(tmp_path, 'rollout', _GRIDS))
  frames = [runs.column(tmp_path, f'rollout/frames/{x}')[-1] for x in _GRIDS]
  # One of four local environments has it, and all of the actor.
  assert frames[2] > max(frames[:2])
  assert f'{_GRIDS[1]}: return ' in run.output
  line = progress.ProgressLine()
  options = scoring.EvaluationOptions(6, max_steps=30)
  evaluation = scoring.evaluate(tmp_path, options, line)
  assert sorted(e.task for e in evaluation.episodes) == [0, 0, 1, 1, 2, 2]
  assert all(f'\n{name}: return ' in evaluation.report() for name in _GRIDS)
  options = scoring.EvaluationOptions(2, max_steps=30, task=_GRIDS[1])
  evaluation = scoring.evaluate(tmp_path, options, line)
  assert [e.task for e in evaluation.episodes] == [1, 1]
  assert evaluation.env_id == _GRIDS[1]
  for options, sentence in (
    (scoring.EvaluationOptions(2), '--episodes=2: give at least 3'),
    (scoring.EvaluationOptions(task='x'), '--task=x: .*MiniGrid-LavaGapS5'),
  ):
    with pytest.raises(ValueError, match=sentence):
      scoring.evaluate(tmp_path, options, line)
  config.total_env_frames += 1000
  assert runs.Run(config, tmp_path).train()['status'] == 'finished'
  config.env.tasks = _GRIDS[:2]
  with pytest.raises(workdir.WorkdirError, match=r'run has tasks=.*env.tasks'):
    runs.Run(config, tmp_path).train()


@pytest.mark.parametrize(
  ('make', 'values'),
  [
    pytest.param(a2c_cartpole.get_config, {}, marks=pytest.mark.slow),
    (
      ppo_cartpole.get_config,
      {'epochs': 2, 'minibatches': 2, 'network__popart': True},
    ),
    pytest.param(
      pqn_cartpole.get_config,
      {'epochs': 2, 'minibatches': 2},
      marks=pytest.mark.slow,
    ),
    (
      r2d2_cartpole.get_config,
      {'replay__min_size': 16, 'burn_in': 2, 'replay__backend': 'embedded'},
    ),
  ],
)
def test_tasks_in_jax(make, values, tmp_path):
  config = _config(make, _CHAINS, replay__backend='auto')
  runs.set_keys(config, **values)
  if 'normalization' in config:
    config.normalization.rewards = False
  assert runs.Run(config, tmp_path).train()['status'] == 'finished'
  assert all(_returns(tmp_path, 'rollout', _CHAINS))
  assert all(_returns(tmp_path, 'eval', _CHAINS))


@pytest.mark.parametrize(
  ('values', 'sentence'),
  [
    ({'env__num_envs': 2}, 'num_envs=2 are too few for 3 tasks'),
    ({'num_eval_envs': 2}, 'num_eval_envs=2: give at least 3'),
  ],
)
def test_refuses(values, sentence, tmp_path):
  config = _config(vtrace_cartpole.get_config, _GRIDS, **values)
  with pytest.raises(ValueError, match=sentence):
    runs.Run(config, tmp_path)
