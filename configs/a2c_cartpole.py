"""A2C on CartPole-v1: the V-trace agent, as in `a2c_atari`.

Settings are those of Stable-Baselines3 (RL Baselines3 Zoo), except for:

* 16 environments (8), and 8 for evaluation, which act greedily;
* a learning rate that decays to 0, as in OpenAI's A2C (constant);
* rewards of 0.1 (1): unscaled, returns of up to a hundred make the value's
  gradient swamp the policy's in the hidden units that both share;
* one network of ReLUs (two of tanh).
"""

from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 500_000
  config.env.num_envs = 16
  config.unroll_length = 5
  config.batch_size = 16
  config.loss.entropy_cost = 0.0
  config.loss.baseline_cost = 1.0  # of half the square
  config.loss.reward_scale = 0.1
  config.optimizer.name = 'rmsprop'
  config.optimizer.learning_rate = 7e-4
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
  # Acting and training alternate: the data are on-policy.
  config.learner.max_lag = 0
  return config
