"""Recurrent PQN on the memory task `envs/recall.py`: a minute on two cores."""

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
