"""Runs RLlib's IMPALA; see `common`."""

from typing import Any

import common
import envpool
import gymnasium
import ray
from gymnasium.vector import utils
from ray.rllib.algorithms import impala
from ray.rllib.core.rl_module import default_model_config
from ray.tune import registry


class Vector(gymnasium.vector.VectorEnv):
  """EnvPool's environments; like Gymnasium's they reset in the next step."""

  def __init__(self, settings: dict[str, Any], num_envs: int, worker: int):
    self.metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.NEXT_STEP}
    self._pool: Any = envpool.make_gymnasium(
      settings['env'],
      num_envs=num_envs,
      seed=settings['seed'] + worker * num_envs,
      **settings['options'],
    )
    self.num_envs = num_envs
    self.single_observation_space = self._pool.observation_space
    self.single_action_space = self._pool.action_space
    self.observation_space = utils.batch_space(
      self.single_observation_space, num_envs
    )
    self.action_space = utils.batch_space(self.single_action_space, num_envs)

  def reset(self, **unused: Any) -> Any:
    return self._pool.reset()[0], {}

  def step(self, actions: Any) -> Any:
    return *self._pool.step(actions)[:4], {}


def _config(settings: dict[str, Any]) -> impala.IMPALAConfig:
  workers, network = settings['workers'], settings['network']
  registry.register_env(
    'pool',
    lambda context: Vector(
      settings, context.get('num_envs', 1), context.get('worker_index', 0)
    ),
  )
  hidden = network['hidden_sizes']
  convolutions = network['convolutions']
  model = default_model_config.DefaultModelConfig(
    conv_filters=convolutions or None,
    conv_activation='relu',
    fcnet_hiddens=hidden if not convolutions else [],
    fcnet_activation='relu',
    head_fcnet_hiddens=hidden if convolutions else [],
    head_fcnet_activation='relu',
    vf_share_layers=True,
  )
  config = impala.IMPALAConfig()
  config.environment('pool')
  config.env_runners(
    num_env_runners=workers,
    num_envs_per_env_runner=settings['num_envs'] // workers,
    gym_env_vectorize_mode='vector_entry_point',
    rollout_fragment_length=settings['unroll_length'],
  )
  config.learners(num_learners=0)
  config.training(
    train_batch_size_per_learner=(
      settings['unroll_length'] * settings['batch_size']
    ),
    gamma=settings['discount'],
    entropy_coeff=settings['entropy_cost'],
    vf_loss_coeff=settings['baseline_cost'],
    lr=settings['learning_rate'],
    grad_clip=settings['clip_norm'],
    # Else the learner's process polls, which costs a core.
    timeout_s_sampler_manager=0.05,
  )
  config.rl_module(model_config=model)
  config.reporting(
    min_time_s_per_iteration=0.5, metrics_num_episodes_for_smoothing=100
  )
  config.debugging(seed=settings['seed'])
  return config


def run(settings: dict[str, Any], meter: common.Meter) -> None:
  """Trains until the meter has enough."""
  ray.init(include_dashboard=False, num_cpus=settings['workers'] + 1)
  algorithm = _config(settings).build_algo()
  more = True
  while more:
    result = algorithm.train()
    runners = result.get('env_runners', {})
    if 'episode_return_mean' in runners:
      meter.returns.extend([runners['episode_return_mean']] * common.EPISODES)
    if 'learners' in result:
      more = meter.more(int(result['num_env_steps_sampled_lifetime']))
  algorithm.stop()
  ray.shutdown()


if __name__ == '__main__':
  common.main('ray', run)
