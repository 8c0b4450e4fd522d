"""Runs whose environments are in JAX."""

import chex
import jax
import numpy as np
import pytest

import seedrl_jax
from seedrl_jax.configs import (
  benchmark,
  ppo_cartpole,
  pqn_cartpole,
  r2d2_cartpole,
  sac_pendulum,
  vtrace_cartpole,
)
from seedrl_jax.lab.benchmarks import ceilings, timing
from seedrl_jax.lab.planning import programs
from seedrl_jax.learner import update
from seedrl_jax.replay import device, table_configs
from seedrl_jax.run import plan, training
from tests import runs
from tests.actors import threads

# No other array has this dimension.
_LENGTH = 12
_GUARD = 'jax_transfer_guard_device_to_host'


def _config(make=vtrace_cartpole.get_config, **values):
  small = {
    'env__id': 'gymnax:CartPole-v1',
    'replay__backend': 'auto',
    'unroll_length': _LENGTH,
    'total_env_frames': 2000,
  }
  return runs.tiny(make, **{**small, **values})


def _refuse_host(monkeypatch, request):
  """Makes all that would bring unrolls to the host raise, once it trains.

  On an accelerator, JAX's guard does it, too; on a CPU nothing is transferred.
  """

  def check(leaves):
    for x in leaves:
      if isinstance(x, jax.Array) and _LENGTH + 1 in x.shape:
        raise AssertionError('An unroll came to the host.')

  def checked(function):
    def call(tree, *args, **kwargs):
      check(jax.tree.leaves(tree))
      return function(tree, *args, **kwargs)

    return call

  def place(*_):
    raise AssertionError('An array of the host went to the devices.')

  compile_all = training.Training.compile

  def compile_and_refuse(self):
    compile_all(self)
    request.addfinalizer(lambda: jax.config.update(_GUARD, 'allow'))
    jax.config.update(_GUARD, 'disallow')
    monkeypatch.setattr(np, 'asarray', checked(np.asarray))
    monkeypatch.setattr(jax, 'device_get', checked(jax.device_get))
    monkeypatch.setattr(update.Updater, '_place', place)

  monkeypatch.setattr(training.Training, 'compile', compile_and_refuse)


@pytest.mark.parametrize('backend', ['device', 'embedded'])
@pytest.mark.parametrize('split', ['1:1', '1:3', '2:2'])
def test_unrolls_never_visit_the_host(
  tmp_path, monkeypatch, request, split, backend
):
  devices = 1 if split == '1:1' else 4
  config = _config(
    env__num_envs=24,
    batch_size=12,
    num_eval_envs=4,
    topology__max_devices=devices,
    topology__inference_to_training=split,
    replay__backend=backend,
  )
  _refuse_host(monkeypatch, request)
  run = runs.Run(config, tmp_path)
  if backend == 'embedded':
    # The guards see what does.
    with pytest.raises(Exception, match='came to the host'):
      run.train()
    return
  assert isinstance(run.system.parts.store, device.DeviceStore)
  assert run.system.parts.plan.device_env is not None
  summary = run.train()
  assert summary['status'] == 'finished'
  assert summary['updates'] >= 2000 // (12 * _LENGTH) - 4
  assert summary['mean_return_100'] > 8 and summary['eval_mean_return'] > 8
  runs.check_cartpole_episodes(tmp_path)


@pytest.mark.parametrize(
  ('make', 'values'),
  [
    (ppo_cartpole.get_config, {}),
    (ppo_cartpole.get_config, {'network__lstm_size': 4}),
    (pqn_cartpole.get_config, {'env__factory': 'my_device_env:make'}),
    (vtrace_cartpole.get_config, {'learner__max_lag': 1}),
    (vtrace_cartpole.get_config, {'replay__backend': 'reverb'}),
    pytest.param(
      r2d2_cartpole.get_config,
      {'replay__min_size': 8},
      marks=pytest.mark.slow,
    ),
    (sac_pendulum.get_config, {'env__id': 'gymnax:Pendulum-v1'}),
  ],
)
def test_agents_train(tmp_path, monkeypatch, request, make, values):
  monkeypatch.syspath_prepend(runs.ROOT / 'docs/examples')
  if values.get('replay__backend') == 'reverb':
    request.getfixturevalue('shared_reverb')
  config = _config(make, **values)
  if make is sac_pendulum.get_config:
    config.unroll_length, config.total_env_frames = 1, 300
    config.replay.min_size = config.batch_size = 8
    config.replay.samples_per_insert = 8.0
  if 'minibatches' in config:
    config.minibatches = 2
  summary = runs.Run(config, tmp_path).train()
  assert summary['status'] == 'finished' and summary['updates'] > 2
  if config.learner.max_lag is not None:
    lags = [x['replay/policy_lag_max_batches'] for x in runs.rows(tmp_path)]
    # Empty in a report before the first update.
    assert max(float(x) for x in lags if x) <= 1


def test_deterministic_runs_are_bit_equal_and_resume(tmp_path):
  config = _config(deterministic=True, network__lstm_size=3)
  a = runs.train_reproducibly(config, tmp_path)
  config.total_env_frames = 4000
  resumed = runs.Run(config, tmp_path / 'a')
  keys = [run.system.parts.workers[0].key for run in (a, resumed)]
  np.testing.assert_array_equal(*keys)
  chex.assert_trees_all_equal(resumed.params, a.params)
  before = runs.summary(tmp_path / 'a')
  after = resumed.train()
  assert after['env_frames'] >= 4000 and after['updates'] > before['updates']


def test_remote_actors_beside_device_environments_and_the_policy(tmp_path):
  config = _config(
    env__num_envs=8,
    batch_size=4,
    actors__max_envs=4,
    total_env_frames=10**9,
    log__every_seconds=0.1,
  )

  def remote_info():
    return run.system.parts.store.table(device.REMOTE_TABLE).info()

  run = runs.Run(
    config, tmp_path, on_report=lambda _: not remote_info().samples
  )
  store = run.system.parts.store
  with threads.acting(run.system, 4):
    summary = run.train()
  assert summary['status'] == 'stopped'
  remote = remote_info()
  assert remote.samples and remote.inserts - remote.samples <= 2 * 4
  assert store.info()[table_configs.TABLE].samples > remote.samples
  runs.check_cartpole_episodes(tmp_path)
  assert max(runs.column(tmp_path, 'actors/connected_envs')) == 4
  policy = seedrl_jax.load_policy(tmp_path)
  assert policy.act(np.zeros((5, 4), np.float32), np.ones(5)).shape == (5,)


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    ({'env__num_envs': 6}, r'env.num_envs: .*multiple'),
    ({'env__batch_size': 2}, r'env.batch_size=2: has no effect on gymnax'),
    ({'env__options': {'gravi': 1}}, r'options=.*cannot take them: .*gravi'),
    ({'env__id': 'gymnax:CartPol-v1'}, r'nearest are gymnax:CartPole-v1'),
    ({'actors__max_envs': 4, 'learner__max_lag': 4}, r'backend=device: needs'),
    ({'env__id': 'MiniGrid-Empty-5x5-v0'}, r'backend=device: needs'),
    ({'make': r2d2_cartpole.get_config}, r'backend=device: needs'),
  ],
)
def test_refusals(values, message):
  with pytest.raises(ValueError, match=message):
    plan.make_plan(_config(**{'replay__backend': 'device', **values}))


def test_the_stages_of_a_run_and_its_programs():
  config = benchmark.get_config('gymnax_cartpole', 8)
  config.batch_size, config.topology.max_devices = 4, 1
  stages = ceilings.measure(config, None, timing.Windows(1, 0.01))
  assert stages.store is None
  assert len(stages.rows()) == 6
  run_plan = plan.make_plan(config)
  assert stages.ideal(run_plan.topology) == stages.fused.median > 0
  (resources,) = stages.resources(run_plan.topology)
  assert resources.keys() == {'inference', 'update', 'publishing'}
  names = [program.name for program in programs.list_programs(run_plan)]
  assert names == ['update', f'act and step {8 * config.unroll_length}']
