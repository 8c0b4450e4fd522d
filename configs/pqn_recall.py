"""Recurrent PQN on a memory task: a minute on two CPU cores.

A cue in the first step, the question 10 to 20 steps later
(`seedrl_jax/envs/recall.py`). Without memory, the best return is 1 / 4.
"""

from seedrl_jax.configs import base, pqn_cartpole


def get_config() -> base.Config:
  config = pqn_cartpole.get_config()
  config.env.factory = 'seedrl_jax.envs.recall:make'
  config.total_env_frames = config.optimizer.decay_frames = 200_000
  config.unroll_length = 32
  config.network.hidden_sizes = (64,)
  config.network.lstm_size = 64
  config.loss.reward_scale = 1.0
  config.exploration.final_epsilon = 0.1
  config.optimizer.learning_rate = 1e-3
  return config
