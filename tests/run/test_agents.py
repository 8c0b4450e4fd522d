"""Agents beside V-trace and R2D2 on the paths that a run can take."""

import io
import pathlib

import pytest

from seedrl_jax.configs import (
  dqn_cartpole,
  ppo_cartpole,
  ppo_pendulum,
  pqn_cartpole,
  sac_pendulum,
  vtrace_cartpole,
)
from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress
from tests import runs
from tests.actors import threads

_ECHO = {
  'env__factory': 'tests.envs.toys:echo',
  'env__factory_kwargs': {'kind': 'joint'},
}
_HYBRID = {
  **_ECHO,
  'env__factory_kwargs': {'kind': 'hybrid'},
  'network__lstm_size': 4,
  'network__use_previous_action': True,
}
_ALLOWED = ('--allow_factory=tests.envs.toys:echo',)
_EPOCHS = {'epochs': 2, 'minibatches': 2}
_CASES = {
  'continuous, stacked': (
    ppo_pendulum.get_config,
    {'env__id': 'Pendulum-v1', 'network__frame_stack': 2, **_EPOCHS},
  ),
  'multi-discrete, recurrent': (
    ppo_cartpole.get_config,
    {
      **_ECHO,
      **_EPOCHS,
      'network__lstm_size': 4,
      'network__use_previous_action': True,
    },
  ),
  'ppo, hybrid': (ppo_cartpole.get_config, {**_HYBRID, **_EPOCHS}),
  'vtrace, hybrid': (vtrace_cartpole.get_config, _HYBRID),
  'sac': (
    sac_pendulum.get_config,
    {
      'env__id': 'Pendulum-v1',
      'unroll_length': 1,
      'updates_per_call': 2,
      'batch_size': 8,
      'replay__min_size': 40,
      'replay__max_size': 1000,
      'replay__samples_per_insert': 1.0,
    },
  ),
  'pqn': (pqn_cartpole.get_config, _EPOCHS),
}


@pytest.mark.usefixtures('shared_reverb')
@pytest.mark.parametrize('name', _CASES)
def test_remote_actors_reverb_resumption_and_evaluation(
  name: str, tmp_path: pathlib.Path
):
  make, values = _CASES[name]
  config = runs.tiny(
    make,
    **values,
    replay__backend='reverb',
    env__num_envs=0,
    actors__max_envs=4,
    num_eval_envs=1,
  )
  updates = 0
  for _ in range(2):
    run = runs.Run(config, tmp_path)
    with threads.acting(run.system, 4, _ALLOWED):
      summary = run.train()
    assert summary['status'] == 'finished'
    assert run.initial_state.step == updates < summary['updates']
    updates = summary['updates']
    config.total_env_frames *= 2
  options = scoring.EvaluationOptions(2, num_envs=2, allowed=_ALLOWED)
  line = progress.ProgressLine(io.StringIO())
  evaluation = scoring.evaluate(tmp_path, options, line)
  assert [e.length > 1 for e in evaluation.episodes] == [True, True]


@pytest.mark.parametrize('lookahead', [0, 2])
def test_a_replay_gets_no_resets(lookahead: int, tmp_path: pathlib.Path):
  config = runs.tiny(
    dqn_cartpole.get_config,
    unroll_length=1,
    lookahead=lookahead,
    loss__n_steps=lookahead + 1,
    replay__min_size=40,
    replay__samples_per_insert=1.0,
    log__every_seconds=0.01,
  )
  run = runs.Run(config, tmp_path)
  steps = run.train()['env_steps']
  # An episode of Catch has 9 steps.
  inserts = run.system.parts.store.info()['unrolls'].inserts
  assert 0.9 * steps < inserts <= steps
  assert float(runs.rows(tmp_path)[-1]['losses/masked_share']) == 0.0
