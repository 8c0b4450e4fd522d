"""Tests that agents learn easy tasks, by greedy episodes of the last policy.

Runs are deterministic, so a test's outcome does not depend on the machine.
"""

import numpy as np
import pytest

from seedrl_jax.configs import (
  dqn_cartpole,
  pqn_cartpole,
  r2d2_recall,
  sac_pendulum,
  vtrace_catch,
)
from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress
from tests import runs

_COMMON = {
  'seed': 1,
  'num_eval_envs': 0,
  'topology__max_devices': 1,
  'log__writers': ('csv',),
  'replay__backend': 'embedded',
  'deterministic': True,
}
# Two cues, and one to three steps until the answer.
_SHORT_RECALL = {'num_cues': 2, 'min_delay': 1, 'max_delay': 3}


def _score(tmp_path, config, **values):
  """Trains; returns the mean of 100 greedy episodes of the last checkpoint."""
  runs.set_keys(config, **_COMMON, **values)
  runs.Run(config, tmp_path).train()
  options = scoring.EvaluationOptions(
    episodes=100,
    num_envs=10,
    allowed=(f'--allow_factory={config.env.factory}',),
  )
  evaluation = scoring.evaluate(tmp_path, options, progress.ProgressLine())
  return np.mean(evaluation.returns)


def test_vtrace_catches(tmp_path):
  config = vtrace_catch.get_config()
  score = _score(tmp_path, config, total_env_frames=40_000)
  # At random -0.6.
  assert score >= 0.8


def test_dqn_catches(tmp_path):
  score = _score(
    tmp_path,
    dqn_cartpole.get_config(),
    env__id='Catch-v0',
    total_env_frames=15_000,
    exploration__decay_frames=8_000,
    optimizer__schedule='constant',
    replay__min_size=1_000,
    replay__samples_per_insert=16.0,
  )
  assert score >= 0.8


def test_r2d2_recalls(tmp_path):
  score = _score(
    tmp_path,
    r2d2_recall.get_config(),
    env__factory_kwargs=_SHORT_RECALL,
    total_env_frames=15_000,
    unroll_length=6,
    burn_in=0,
    network__hidden_sizes=(32,),
    network__lstm_size=32,
    network__head_hidden_size=32,
    optimizer__schedule='constant',
  )
  # By chance 0.5.
  assert score >= 0.9


def test_sac_reaches(tmp_path):
  score = _score(
    tmp_path,
    sac_pendulum.get_config(),
    env__factory='tests.agents.continuous:reach',
    total_env_frames=1_600,
    network__hidden_sizes=(32,),
    loss__discount=0.5,
    replay__min_size=400,
    batch_size=256,
    updates_per_call=4,
  )
  # Of 8; constant actions of 0 get 1.6.
  assert score >= 6.0


@pytest.mark.parametrize('lstm_size', [0, 16])
def test_pqn_chooses(tmp_path, lstm_size):
  score = _score(
    tmp_path,
    pqn_cartpole.get_config(),
    env__factory='tests.evaluation.evaluation_runs:chooser',
    env__num_envs=16,
    unroll_length=16,
    batch_size=16,
    minibatches=4,
    network__hidden_sizes=(32,),
    network__lstm_size=lstm_size,
    optimizer__learning_rate=3e-3,
    loss__reward_scale=1.0,
    total_env_frames=10_000,
  )
  # One of three actions is right, in each of five steps.
  assert score > 4.0
