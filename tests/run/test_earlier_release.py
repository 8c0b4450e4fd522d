"""A work directory of an earlier release can be evaluated and resumed.

tests/data/earlier_release is a run of the commit 6448fe1: V-trace on CartPole,
400 frames, with the keys of `tests.runs.tiny` and an LSTM of 4.
"""

import shutil

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.evaluation import policy, scoring
from seedrl_jax.runtime import progress
from tests import runs

_UPDATES, _FRAMES = 21, 406


@pytest.fixture(name='workdir')
def workdir_fixture(tmp_path):
  return shutil.copytree(
    runs.ROOT / 'tests/data/earlier_release', tmp_path / 'run'
  )


def test_acts_as_it_did(workdir):
  player, _ = policy.load(workdir)
  step = types.AgentInput(
    observation=np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    reward=np.zeros(3, np.float32),
    previous_action=np.zeros(3, np.int32),
    first=np.ones(3, bool),
  )
  agent = player.agent
  output, _ = agent.act(
    player.params,
    jax.random.PRNGKey(0),
    step,
    agent.initial_core(3),
    np.arange(3, dtype=np.int32),
  )
  # What that commit computed.
  expected = [
    [0.0054758452, -0.0064908434],
    [0.0038605430, -0.0035952602],
    [0.0054143989, -0.0036789924],
  ]
  np.testing.assert_allclose(output.policy_logits, expected, rtol=1e-4)
  options = scoring.EvaluationOptions(episodes=2, num_envs=2)
  evaluation = scoring.evaluate(workdir, options, progress.ProgressLine())
  assert len(evaluation.returns) == 2


def test_goes_on(workdir):
  before = runs.column(workdir, 'time/env_frames')
  config = runs.tiny(
    env__id='CartPole-v1',
    network__lstm_size=4,
    total_env_frames=2 * _FRAMES,
  )
  run = runs.Run(config, workdir)
  assert f'Resuming from checkpoint {_UPDATES}: {_FRAMES} ' in run.output
  # It has no digest.
  assert 'The replay starts empty' in run.output
  summary = run.train()
  assert summary['status'] == 'finished'
  assert summary['updates'] > _UPDATES
  frames = runs.column(workdir, 'time/env_frames')
  assert frames[: len(before)] == before and frames[-1] >= 2 * _FRAMES
