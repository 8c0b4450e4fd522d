"""Slow tests that the configurations learn, with 3/3 seeds."""

import sys

import numpy as np
import pytest

from seedrl_jax.configs import (
  a2c_atari,
  a2c_cartpole,
  apex_cartpole,
  dqn_cartpole,
  dqn_lunarlander,
  dyna_q_cartpole,
  ppo_atari,
  ppo_cartpole,
  ppo_lunarlander,
  ppo_pendulum,
  ppo_recall,
  pqn_atari,
  pqn_cartpole,
  pqn_recall,
  r2d2_cartpole,
  r2d2_catch,
  r2d2_pong,
  r2d2_recall,
  r2d3_lock,
  sac_pendulum,
  vtrace_atari,
  vtrace_cartpole,
  vtrace_catch,
)
from seedrl_jax.demonstrations import recording
from seedrl_jax.evaluation import scoring
from seedrl_jax.runtime import progress
from tests import runs
from tests.actors import processes
from tests.envs import streams
from tests.hosts import ports

_SEEDS = pytest.mark.parametrize('seed', [1, 2, 3])


_DIED = 'The network has died'


def _train(
  config,
  workdir,
  seed,
  backend='embedded',
  score='mean_return_100',
  **values,
):
  runs.set_keys(
    config,
    seed=seed,
    topology__max_devices=1,
    replay__backend=backend,
    **values,
  )
  run = runs.Run(config, workdir)
  summary = run.train()
  frames = summary['env_frames']
  assert frames < config.total_env_frames * 1.01
  assert _DIED not in run.output
  return summary[score]


@pytest.mark.slow
@_SEEDS
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
def test_a2c_cartpole(tmp_path, seed):
  config = a2c_cartpole.get_config()
  assert config.total_env_frames <= 500_000
  assert _train(config, tmp_path, seed) >= 490


# R2D2's training environments never stop exploring.
_EVALUATION = {'score': 'eval_mean_return'}


@pytest.mark.slow
@_SEEDS
def test_r2d2_cartpole(tmp_path, seed, backend):
  config = r2d2_cartpole.get_config()
  # One of about twenty runs ends a little above 400, after 500.
  assert _train(config, tmp_path, seed, backend, **_EVALUATION) >= 400


@pytest.mark.slow
@_SEEDS
def test_r2d2_catch(tmp_path, seed):
  config = r2d2_catch.get_config()
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 0.95


@pytest.mark.slow
@_SEEDS
def test_r2d2_recalls(tmp_path, seed):
  config = r2d2_recall.get_config()
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 0.95


@pytest.mark.slow
@_SEEDS
def test_without_memory_recall_is_chance(tmp_path, seed):
  config = r2d2_recall.get_config()
  # By chance, 100 training episodes score 0.25 with a standard error of 0.043;
  # 20 evaluation episodes would be too few.
  score = _train(config, tmp_path, seed, network__lstm_size=0, burn_in=0)
  assert score < 0.25 + 3 * 0.043


@pytest.mark.slow
@_SEEDS
def test_dqn_cartpole(tmp_path, seed):
  config = dqn_cartpole.get_config()
  assert config.total_env_frames <= 500_000
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 480


@pytest.mark.slow
@_SEEDS
def test_dyna_q_cartpole(tmp_path, seed):
  config = dyna_q_cartpole.get_config()
  assert config.total_env_frames <= 500_000
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 450


@pytest.mark.slow
@_SEEDS
def test_apex_cartpole(tmp_path, seed):
  config = apex_cartpole.get_config()
  # Not tuned for this task: runs end between 375 and 500.
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 300


@pytest.mark.slow
@_SEEDS
def test_pqn_cartpole(tmp_path, seed):
  config = pqn_cartpole.get_config()
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 490


@pytest.mark.slow
@_SEEDS
def test_pqn_recalls(tmp_path, seed):
  config = pqn_recall.get_config()
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 0.95


def _evaluate(workdir):
  """Returns the mean of 100 greedy episodes of the last checkpoint."""
  options = scoring.EvaluationOptions(episodes=100, num_envs=10)
  evaluation = scoring.evaluate(workdir, options, progress.ProgressLine())
  return np.mean([episode.episode_return for episode in evaluation.episodes])


@pytest.mark.slow
@_SEEDS
@pytest.mark.parametrize(
  ('config_module', 'env_id', 'least'),
  [
    (ppo_cartpole, 'CartPole-v1', 490),
    (ppo_cartpole, 'Acrobot-v1', -90),
    (ppo_lunarlander, 'LunarLander-v2', 230),
    (ppo_pendulum, 'Pendulum-v1', -180),
    (dqn_lunarlander, 'LunarLander-v2', 200),
    # -160 is wanted; of the mean, the episodes' starts give a deviation of 7.
    (sac_pendulum, 'Pendulum-v1', -170),
  ],
)
def test_last_checkpoint(tmp_path, seed, config_module, env_id, least):
  config = config_module.get_config()
  _train(config, tmp_path, seed, env__id=env_id)
  assert _evaluate(tmp_path) >= least


@pytest.mark.slow
@_SEEDS
def test_ppo_recalls(tmp_path, seed):
  config = ppo_recall.get_config()
  assert _train(config, tmp_path, seed, **_EVALUATION) >= 0.95


@pytest.mark.slow
@_SEEDS
def test_ppo_makes_two_choices_at_once(tmp_path, seed):
  config = ppo_cartpole.get_config()
  config.env = streams.toy('match')
  config.env.num_envs = 32
  score = _train(config, tmp_path, seed, total_env_frames=50_000)
  # By chance 8 / 9.
  assert score > 7.5


@pytest.mark.slow
@_SEEDS
def test_ppo_presses_and_aims_at_once(tmp_path, seed):
  config = ppo_cartpole.get_config()
  config.env.factory = 'tests.envs.hybrid:make'
  score = _train(
    config, tmp_path, seed, total_env_frames=200_000, **_EVALUATION
  )
  # Of 8; at random the button alone pays 8 / 3.
  assert score > 7


@pytest.mark.slow
@_SEEDS
@pytest.mark.parametrize('make', [ppo_cartpole, vtrace_cartpole])
@pytest.mark.parametrize('scale', [1e-3, 1e3])
def test_popart_learns_from_rewards_of_any_scale(tmp_path, make, scale, seed):
  def train(popart):
    config = make.get_config()
    config.env.factory = 'tests.envs.scaled:make'
    config.env.factory_kwargs.scale = scale
    config.network.popart = popart
    if make is vtrace_cartpole:
      config.loss.reward_scale, config.loss.entropy_cost = 1.0, 0.05
    score = _train(config, tmp_path / str(popart), seed, **_EVALUATION)
    return score / scale

  score = train(popart=True)
  assert score > 450
  if scale > 1:
    assert train(popart=False) < score


@pytest.mark.slow
@_SEEDS
def test_only_demonstrations_open_the_lock(tmp_path, seed):
  demos = tmp_path / 'demos'
  options = recording.RecordingOptions(
    policy='seedrl_jax.envs.combination_lock:opener',
    out=str(demos),
    episodes=200,
  )
  recording.record(r2d3_lock.get_config(), options, progress.ProgressLine())
  without = _train(
    r2d3_lock.get_config(), tmp_path / 'without', seed, **_EVALUATION
  )
  assert without == 0
  shown = _train(
    r2d3_lock.get_config(),
    tmp_path / 'with',
    seed,
    **_EVALUATION,
    demonstrations__path=str(demos),
    demonstrations__fraction=0.25,
  )
  assert shown >= 0.9


_FRAMES = 500_000
# Config keys of V-trace on CartPole with this process's devices or with actors,
# which the learner waits for.
_PLACES = {
  'two training devices': {
    'topology.max_devices': 3,
    'topology.inference_to_training': '1:2',
  },
  'remote actors': {'actors.max_envs': 32, 'env.num_envs': 0},
  'local inference': {
    'actors.max_envs': 32,
    'env.num_envs': 0,
    'actors.local_inference': True,
    'replay.backend': 'auto',
  },
  'two hosts': {'topology.max_devices': 2, 'env.num_envs': 16},
}


@pytest.mark.slow
@pytest.mark.parametrize('place', _PLACES)
def test_vtrace_learns_wherever_it_acts_and_trains(tmp_path, place, request):
  if place == 'local inference':
    request.getfixturevalue('server_python')
  values = {
    'seed': 1,
    'total_env_frames': _FRAMES,
    'optimizer.decay_frames': _FRAMES,
    'topology.max_devices': 1,
    'replay.backend': 'embedded',
    # A busy machine may delay an actor or a host.
    'actors.timeout': 600.0,
    'hosts.timeout': 600.0,
    **_PLACES[place],
  }
  flags = [
    '--config=vtrace_cartpole',
    *(f'--config.{key}={value}' for key, value in values.items()),
  ]
  variables = {'XLA_FLAGS': '--xla_force_host_platform_device_count=3'}
  others = []
  if place == 'two hosts':
    flags += [f'--coordinator=127.0.0.1:{ports.free()}', '--num_processes=2']
    program = runs.ROOT / 'launch/learner.py'
    command = [*flags, '--process_id=1', f'--workdir={tmp_path}']
    others.append(
      processes.Process([sys.executable, program, *command], **variables)
    )
    flags.append('--process_id=0')
  elif 'actors.max_envs' in values:
    inference = 'local' if place == 'local inference' else 'central'
    address = f'unix:{tmp_path}/actors.sock'
    actor = (f'--inference={inference}', '--envs_per_group=8')
    # Each has two groups.
    others += [processes.actor(address, *actor) for _ in range(2)]
  result = runs.call('learner', f'--workdir={tmp_path}', *flags, **variables)
  assert result.returncode == 0, result.stderr
  for other in others:
    assert other.end() == 0, other.text
  score = _evaluate(tmp_path)
  print(f'{place}: {score:.1f}')
  assert score >= 400


def _train_asynchronously(workdir, config, seed, *flags):
  result = runs.call(
    'train_async',
    f'--config={config}',
    f'--workdir={workdir}',
    f'--config.seed={seed}',
    *flags,
  )
  assert result.returncode == 0, result.stderr
  return runs.summary(workdir)['mean_return_100']


@pytest.mark.slow
@_SEEDS
@pytest.mark.parametrize('config', ['a3c_cartpole', 'gorila_cartpole'])
def test_workers_learn_together(tmp_path, config, seed):
  assert _train_asynchronously(tmp_path, config, seed) >= 475


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(1, 6))
def test_two_hogwild_workers_solve_lunarlander(tmp_path, seed):
  assert _train_asynchronously(tmp_path, 'concurrent/dqn', seed) >= 200


@pytest.mark.slow
@_SEEDS
def test_warns_of_a_dead_network_on_boxing(tmp_path, seed):
  # The settings of an earlier release.
  config = vtrace_atari.get_config()
  runs.set_keys(
    config,
    seed=seed,
    total_env_frames=600_000,
    env__id='Boxing-v5',
    env__num_envs=32,
    env__episodic_life=True,
    env__repeat_action_probability=0.0,
    env__full_action_space=False,
    network__normalize_pixels=False,
    batch_size=8,
    loss__entropy_cost=0.002,
    loss__lambda_=0.95,
    optimizer__learning_rate=6e-4,
    optimizer__warmup_frames=0,
    optimizer__decay_frames=20_000_000,
  )
  run = runs.Run(config, tmp_path)
  run.train()
  assert _DIED in run.output


@pytest.mark.slow
@pytest.mark.parametrize(
  'module', [a2c_atari, ppo_atari, pqn_atari, r2d2_pong, vtrace_atari]
)
def test_networks_of_the_atari_configurations_live(tmp_path, module):
  # A Boxing game has 1,785 steps of four frames: 128 environments finish their
  # first at 0.91M frames. The first returns are those of random play.
  score = _train(
    module.get_config(),
    tmp_path,
    seed=1,
    total_env_frames=1_000_000,
    env__id='Boxing-v5',
    network__torso='shallow',
  )
  assert score > -20
