"""Recurrent PPO on a memory task: seconds on two CPU cores.

The task is `seedrl_jax/envs/recall.py`. Minibatches are of whole unrolls, each
from the state that acted at its start.
"""

from seedrl_jax.configs import base, ppo_cartpole


def get_config() -> base.Config:
  config = ppo_cartpole.get_config()
  config.env.factory = 'seedrl_jax.envs.recall:make'
  config.total_env_frames = config.optimizer.decay_frames = 200_000
  config.num_eval_envs = 4
  config.epochs, config.minibatches = 4, 4
  config.network.separate_baseline = False
  config.network.hidden_sizes = (64,)
  config.network.lstm_size = 64
  config.loss.lambda_ = 0.95
  config.loss.entropy_cost = 0.01
  return config
