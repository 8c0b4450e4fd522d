"""Tests updates of shared parameters against the ordinary learner's."""

import io

import chex
import jax
import numpy as np
import pytest

from seedrl_jax.agents import base
from seedrl_jax.configs import (
  a2c_cartpole,
  apex_cartpole,
  dqn_cartpole,
  ppo_cartpole,
)
from seedrl_jax.envs import factory
from seedrl_jax.hosts import coordinator
from seedrl_jax.run import system
from seedrl_jax.runtime import config_files, process, progress
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.workers import coordinator as workers_lib
from seedrl_jax.workers import updater as updater_lib
from tests import runs

_REPLAY = {'replay__min_size': 20, 'replay__max_size': 100}
_AGENTS = {
  'a2c': (a2c_cartpole.get_config, {'batch_size': 4}),
  'lstm': (a2c_cartpole.get_config, {'network__lstm_size': 4}),
  'dqn': (
    dqn_cartpole.get_config,
    {
      **_REPLAY,
      'unroll_length': 1,
      'loss__target_update_period': 3,
      'exploration__decay_frames': 200,
      'optimizer__name': 'sgd',
      'optimizer__sgd_momentum': 0.5,
    },
  ),
  'apex': (apex_cartpole.get_config, {**_REPLAY, 'unroll_length': 1}),
}


def _config(name):
  make, changes = _AGENTS[name]
  config = runs.tiny(make, **changes)
  config.replay.backend = 'embedded'
  config.asynchronous.workers = 1
  return config


def _train(config, workdir, coordinator):
  run = system.System(
    config,
    workdir,
    line=progress.ProgressLine(io.StringIO()),
    coordinator=coordinator,
  )
  summary = run.train()
  return summary, run.parts.learner.state()


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(x, marks=[pytest.mark.slow] if x == 'apex' else [])
    for x in _AGENTS
  ],
)
def test_one_worker_trains_as_the_ordinary_learner(name, tmp_path):
  config = _config(name)
  config.deterministic = True
  ordinary, expected = _train(config, tmp_path / 'a', None)
  config.deterministic = False
  folder = workdir_lib.Workdir(tmp_path / 'b')
  workers = workers_lib.AsynchronousWorkers(config, folder)
  summary, actual = _train(config, folder.path, workers)
  assert summary.updates == ordinary.updates == actual.step > 5
  assert summary.env_steps == ordinary.env_steps
  chex.assert_trees_all_close(actual, expected, rtol=1e-6, atol=1e-6)
  metrics = runs.rows(folder.path)[-1]
  assert float(metrics['asynchronous/staleness_mean']) == 0.0
  # A run that has ended so can go on so, with all its state.
  config.total_env_frames += 100
  workers = workers_lib.AsynchronousWorkers(config, folder)
  resumed, later = _train(config, folder.path, workers)
  assert resumed.env_steps > summary.env_steps
  assert later.step > actual.step


def test_each_worker_has_a_device_of_its_own(tmp_path, monkeypatch):
  used = []
  monkeypatch.setattr(jax, 'local_devices', lambda: ['first', 'second'])
  monkeypatch.setattr(
    jax.config, 'update', lambda _, device: used.append(device)
  )
  config, folder = _config('a2c'), workdir_lib.Workdir(tmp_path)
  for index in 1, 2:
    info = {'worker': index, 'config': config_files.flat_config(config)}
    workers = workers_lib.AsynchronousWorkers(config, folder, info)
    workers.check_start(config)
    used += workers.placement().devices
  assert used == ['second', 'second', 'first', 'first']


def test_only_a_factory_may_report_another_id(tmp_path, monkeypatch):
  monkeypatch.setattr(jax.config, 'update', lambda *_: None)
  config, folder = _config('a2c'), workdir_lib.Workdir(tmp_path)
  first = {**config_files.flat_config(config), 'env.id': 'Reported'}
  info = {'worker': 1, 'config': first}
  workers = workers_lib.AsynchronousWorkers(config, folder, info)
  with pytest.raises(coordinator.HostsMismatch, match='the run has Reported'):
    workers.check_start(config)
  first['env.factory'] = config.env.factory = 'a:make'
  workers.check_start(config)


def test_an_agent_of_several_steps_is_refused():
  config = runs.tiny(ppo_cartpole.get_config)
  agent = base.load_agent(config, factory.make_env_spec(config))
  with pytest.raises(ValueError, match='not one gradient step'):
    updater_lib.AsynchronousStep(agent, config.asynchronous)


def test_outlying_losses_are_found():
  outliers = updater_lib.OutlierFilter(3.0)
  rng = np.random.default_rng(0)
  usual = [outliers.finds(loss) for loss in rng.uniform(1.0, 2.0, 500)]
  assert not any(usual)
  assert outliers.finds(3.0)
  assert not outliers.finds(1.5)
  assert not updater_lib.OutlierFilter(0.0).finds(1e9)


def test_no_loss_is_an_outlier_before_there_is_a_deviation():
  outliers = updater_lib.OutlierFilter(1.0)
  assert not any(outliers.finds(10.0**i) for i in range(10))


@pytest.mark.parametrize('share', ['hogwild', 'lock', 'sync'])
def test_a_step_that_divides_by_zero_ends_the_run(share, tmp_path):
  config = _config('a2c')
  config.asynchronous.share = share
  config.optimizer.name, config.optimizer.epsilon = 'adam', 0.0
  directory = workdir_lib.Workdir(tmp_path)
  coordinator = workers_lib.AsynchronousWorkers(config, directory)
  with pytest.raises(system.RunFailed, match='not finite'):
    _train(config, tmp_path, coordinator)


def test_a_gpu_is_made_deterministic_before_a_device_is_chosen(
  tmp_path, monkeypatch
):
  calls = []
  monkeypatch.setattr(
    process, 'make_gpu_deterministic', lambda: calls.append('deterministic')
  )

  def check_start(self, config):
    calls.append('check_start')
    raise ValueError('The test ends here.')

  monkeypatch.setattr(
    workers_lib.AsynchronousWorkers, 'check_start', check_start
  )
  config = _config('a2c')
  config.deterministic = True
  coordinator = workers_lib.AsynchronousWorkers(
    config, workdir_lib.Workdir(tmp_path)
  )
  with pytest.raises(ValueError, match='ends here'):
    system.System(config, tmp_path, coordinator=coordinator)
  assert calls == ['deterministic', 'check_start']
