"""Slow proofs that the configurations learn, three seeds of three."""

import pytest

from configs import vtrace_cartpole, vtrace_catch
from tests import runs

_SEEDS = pytest.mark.parametrize('seed', [1, 2, 3])


def _train(config, workdir, seed, backend='embedded', **values):
  runs.set_keys(
    config,
    seed=seed,
    topology__max_devices=1,
    replay__backend=backend,
    **values,
  )
  summary = runs.Run(config, workdir).train()
  frames = summary['env_frames']
  assert frames < config.total_env_frames * 1.01
  return summary['mean_return_100']


@pytest.mark.slow
@_SEEDS
@pytest.mark.parametrize('backend', ['embedded', 'reverb'])
def test_cartpole(tmp_path, seed, backend):
  config = vtrace_cartpole.get_config()
  assert config.total_env_frames <= 2_000_000
  assert _train(config, tmp_path, seed, backend) >= 475


@pytest.mark.slow
@_SEEDS
def test_catch(tmp_path, seed):
  config = vtrace_catch.get_config()
  assert config.total_env_frames <= 200_000
  assert _train(config, tmp_path, seed) >= 0.95


@pytest.mark.slow
@_SEEDS
def test_acrobot_without_tuning(tmp_path, seed):
  config = vtrace_cartpole.get_config()
  score = _train(config, tmp_path, seed, env__id='Acrobot-v1')
  assert score > -100


@pytest.mark.slow
@_SEEDS
def test_agent_from_elsewhere(tmp_path, seed):
  config = vtrace_catch.get_config()
  score = _train(config, tmp_path, seed, agent='tests.agents.reinforce')
  assert score >= 0.9
