"""Runs Sample Factory's APPO; see `common`."""

import functools
import os
from typing import Any

import common
import gymnasium
import torsos
from sample_factory.algo.runners import runner as runner_lib
from sample_factory.algo.utils import context
from sample_factory.cfg import arguments
from sample_factory.envs import env_utils
from sample_factory.model import encoder
from sample_factory.train import make_runner


class Vector(gymnasium.Env):
  """EnvPool's environments as agents of one environment."""

  is_multiagent = True

  def __init__(self, settings: dict[str, Any], config: Any):
    self.num_agents = settings['num_envs'] // settings['workers']
    seed = config.env_id * self.num_agents if config else 0
    self._envs = common.Envs(settings, self.num_agents, seed=seed)
    self.observation_space = self._envs.pool.observation_space
    self.action_space = self._envs.pool.action_space

  def reset(self, **unused: Any) -> Any:
    return self._envs.reset(), {}

  def step(self, action: Any) -> Any:
    return *self._envs.step(action)[:4], {}


class Encoder(encoder.Encoder):
  """The system's torso."""

  def __init__(self, settings: dict[str, Any], cfg: Any, space: Any):
    super().__init__(cfg)
    shape = space['obs'].shape
    self._torso, self._size = torsos.make(settings['network'], shape)

  def forward(self, obs_dict: Any) -> Any:
    return self._torso(obs_dict['obs'])

  def get_out_size(self) -> int:
    return self._size


class Measure(runner_lib.AlgoObserver):
  """Marks training steps."""

  def __init__(self, meter: common.Meter):
    self._meter = meter

  def on_training_step(self, runner: Any, unused: int) -> None:
    if 'reward' in runner.policy_avg_stats:
      # Of the last 100 episodes.
      self._meter.returns.clear()
      self._meter.returns.extend(runner.policy_avg_stats['reward'][0])
    if not self._meter.more(runner.total_env_steps_since_resume or 0):
      # Ends the run.
      runner.cfg.train_for_env_steps = 0


def _config(settings: dict[str, Any]) -> Any:
  minibatch = settings['unroll_length'] * settings['batch_size']
  options = {
    'env': 'pool',
    'experiment': 'run',
    'train_dir': os.getcwd(),
    'device': 'cpu',
    'seed': settings['seed'],
    'num_workers': settings['workers'],
    # All environments of a worker are one pool, stepped at once.
    'num_envs_per_worker': 1,
    'worker_num_splits': 1,
    'batched_sampling': True,
    'normalize_input': False,
    'normalize_returns': False,
    'obs_scale': 255.0 if settings['network']['convolutions'] else 1.0,
    'use_rnn': False,
    'rollout': settings['unroll_length'],
    'batch_size': minibatch,
    'num_epochs': 1,
    'gamma': settings['discount'],
    'reward_scale': settings['reward_scale'],
    'exploration_loss_coeff': settings['entropy_cost'],
    'value_loss_coeff': settings['baseline_cost'],
    'learning_rate': settings['learning_rate'],
    'max_grad_norm': settings['clip_norm'],
    'train_for_env_steps': 10**12,
    'save_every_sec': 10**6,
  }
  command = [f'--{name}={value}' for name, value in options.items()]
  parser, _ = arguments.parse_sf_args(command)
  return arguments.parse_full_cfg(parser, command)


def _make(settings: dict[str, Any], *positional: Any, **unused: Any) -> Vector:
  *_, config = positional
  return Vector(settings, config)


def run(settings: dict[str, Any], meter: common.Meter) -> None:
  """Trains until the meter has enough."""
  env_utils.register_env('pool', functools.partial(_make, settings))
  context.global_model_factory().register_encoder_factory(
    functools.partial(Encoder, settings)
  )
  _, runner = make_runner(_config(settings))
  runner.register_observer(Measure(meter))
  if runner.init() or runner.run():
    raise RuntimeError('The run failed.')


if __name__ == '__main__':
  common.main('sample_factory', run)
