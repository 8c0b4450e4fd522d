"""Settings of the clients: the system's configuration in plain values."""

from typing import Any

import ml_collections

from seedrl_jax.envs import registry
from seedrl_jax.lab.benchmarks import timing
from seedrl_jax.networks import torsos


def make(
  config: ml_collections.ConfigDict, windows: timing.Windows
) -> dict[str, Any]:
  """Returns the settings of all clients; some keys are for one of them."""
  loss, optimizer = config.loss, config.optimizer
  options = registry.set_options(config.env)
  if config.network.frame_stack > 1:
    options['stack_num'] = config.network.frame_stack
  common = {
    'env': config.env.id,
    'options': options,
    'num_envs': config.env.num_envs,
    'seed': config.seed,
    'network': _network(config.network),
    'unroll_length': config.unroll_length,
    'batch_size': config.batch_size,
    'learning_rate': optimizer.learning_rate,
    'clip_norm': optimizer.get('clip_norm'),
    'discount': loss.discount,
    'entropy_cost': loss.get('entropy_cost'),
    'baseline_cost': loss.get('baseline_cost'),
    'reward_scale': loss.get('reward_scale', 1.0),
    'windows': list(windows),
    'target': None,
    'limit': 0.0,
  }
  # Of Stable-Baselines3.
  baselines: dict[str, Any] = {'vtrace': _vtrace, 'ppo': _ppo, 'sac': _sac}[
    config.agent
  ](config)
  baselines['arguments'] |= {
    'learning_rate': optimizer.learning_rate,
    'gamma': loss.discount,
  }
  return common | baselines


def _network(config: ml_collections.ConfigDict) -> dict[str, Any]:
  if torso := torsos.CONV_TORSOS.get(config.torso):
    return {
      'convolutions': [list(layer) for layer in torso.layers],
      'hidden_sizes': [config.dense_size or torso.dense_size],
    }
  return {'convolutions': [], 'hidden_sizes': list(config.hidden_sizes)}


def _vtrace(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """PPO that uses a step once, in batches of about the same size."""
  steps = config.unroll_length * config.env.num_envs
  return {
    'algorithm': 'PPO',
    # The torso, shared.
    'policy': {'net_arch': []},
    'arguments': {
      'n_steps': config.unroll_length,
      'batch_size': min(steps, config.unroll_length * config.batch_size),
      'n_epochs': 1,
      'gae_lambda': config.loss.lambda_,
      'ent_coef': config.loss.entropy_cost,
      'vf_coef': config.loss.baseline_cost,
      'max_grad_norm': config.optimizer.clip_norm,
    },
    'normalize': None,
  }


def _ppo(config: ml_collections.ConfigDict) -> dict[str, Any]:
  loss, normalization = config.loss, config.normalization
  batch = config.batch_size * config.unroll_length
  sizes = list(config.network.hidden_sizes)
  return {
    'algorithm': 'PPO',
    'policy': _policy(config, {'pi': sizes, 'vf': sizes}),
    'arguments': {
      'n_steps': batch // config.env.num_envs,
      'batch_size': batch // config.minibatches,
      'n_epochs': config.epochs,
      'gae_lambda': loss.lambda_,
      'clip_range': loss.clip,
      'clip_range_vf': loss.value_clip or None,
      'normalize_advantage': loss.normalize_advantages == 'minibatch',
      'ent_coef': loss.entropy_cost,
      'vf_coef': loss.baseline_cost,
      'max_grad_norm': config.optimizer.clip_norm,
      # It stops at 1.5 times this.
      'target_kl': loss.target_kl / 1.5 or None,
    },
    'normalize': {
      'norm_obs': normalization.observations,
      'norm_reward': normalization.rewards,
      'clip_obs': normalization.observation_clip,
      'clip_reward': normalization.reward_clip,
      'gamma': loss.discount,
    },
  }


def _sac(config: ml_collections.ConfigDict) -> dict[str, Any]:
  replay = config.replay
  minibatch = config.batch_size // config.updates_per_call
  updates = config.env.num_envs * replay.samples_per_insert / minibatch
  sizes = list(config.network.hidden_sizes)
  return {
    'algorithm': 'SAC',
    'policy': _policy(config, {'pi': sizes, 'qf': sizes}),
    'arguments': {
      'buffer_size': replay.max_size,
      'learning_starts': replay.min_size,
      'batch_size': minibatch,
      'tau': config.loss.target_update_rate,
      'train_freq': 1,
      'gradient_steps': round(updates),
    },
    'normalize': None,
  }


def _policy(
  config: ml_collections.ConfigDict, sizes: dict[str, list[int]]
) -> dict[str, Any]:
  activation = {'relu': 'ReLU', 'tanh': 'Tanh'}[config.network.activation]
  return {'net_arch': sizes, 'activation_fn': activation}
