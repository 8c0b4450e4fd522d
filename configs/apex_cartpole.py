"""Ape-X DQN on CartPole-v1: R2D2's agent without memory, on transitions.

--config.replay.sampler=uniform makes it plain double DQN;
--config.env.num_envs=1 --config.exploration.epsilon_base=0.05 a single actor.
"""

from seedrl_jax.configs import base, r2d2_cartpole


def get_config() -> base.Config:
  config = r2d2_cartpole.get_config()
  config.unroll_length = 1
  config.burn_in = 0
  config.lookahead = 2
  config.batch_size = 256
  config.network.lstm_size = 0
  config.network.use_previous_action = False
  config.loss.n_steps = 3
  config.loss.target_update_period = 100
  config.loss.rescale_epsilon = -1.0
  config.loss.priority_eta = 1.0
  # Scales returns of up to a hundred; there is no value rescaling.
  config.loss.reward_scale = 0.1
  config.replay.priority_exponent = 0.6
  config.replay.importance_exponent = 0.4
  config.replay.max_size = 50_000
  config.replay.min_size = 2_000
  return config
