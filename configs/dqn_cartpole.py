"""DQN (Mnih et al. 2015) on CartPole-v1: minutes on two CPU cores.

Uniform replay of single transitions, one network without double Q-learning or
dueling, one-step targets, an epsilon that decays. Settings are those of
CleanRL's dqn.py, except for:

* 16 environments (1), and 4 for evaluation, which act greedily;
* a learning rate that decays from 5e-4 to 0 (2.5e-4 throughout): without, the
  last checkpoint can be a bad one;
* initial weights are orthogonal, and normal in the last layer (uniform).
"""

from seedrl_jax.configs import base, r2d2_base


def get_config() -> base.Config:
  config = r2d2_base.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 500_000
  config.num_eval_envs = 4
  config.env.num_envs = 16
  config.unroll_length = 1
  config.burn_in = 0
  config.batch_size = 128
  config.network.hidden_sizes = (120, 84)
  config.network.lstm_size = 0
  config.network.use_previous_action = False
  config.network.dueling = False
  config.network.head_hidden_size = 0
  config.loss.n_steps = 1
  config.loss.discount = 0.99
  config.loss.double_q = False
  config.loss.rescale_epsilon = -1.0
  config.loss.target_update_period = 50
  config.exploration.schedule = 'linear'
  config.exploration.final_epsilon = 0.05
  config.exploration.decay_frames = 250_000
  config.exploration.eval_epsilon = 0.0
  config.optimizer.learning_rate = 5e-4
  config.optimizer.epsilon = 1e-8
  config.optimizer.schedule = 'linear'
  config.optimizer.clip_norm = 0.0
  config.replay.sampler = 'uniform'
  config.replay.max_size = 10_000
  config.replay.min_size = 10_000
  config.replay.samples_per_insert = 12.8
  return config
