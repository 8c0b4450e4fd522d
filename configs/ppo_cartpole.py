"""PPO on CartPole-v1: seconds on two CPU cores.

Start from here for your own task with small vector observations and discrete
actions. Network and losses are CleanRL's `ppo.py`; the rest is for many
environments (in brackets: CleanRL):

* 32 environments (4), unrolls of 32 steps (128);
* batches of 1,024 transitions (512), in 10 epochs (4) of 8 minibatches (4);
* a learning rate of 1e-3 (2.5e-4), discount 0.98 (0.99) and lambda 0.8 (0.95),
  as in Stable-Baselines3's zoo, without entropy cost (0.01);
* values are not clipped (0.2), and a truncated episode bootstraps (ends);
* acting and training overlap.
"""

from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config(ppo_keys.set_defaults)
  config.total_env_frames = config.optimizer.decay_frames = 500_000
  config.env.num_envs = 32
  config.unroll_length = 32
  config.batch_size = 32
  config.epochs, config.minibatches = 10, 8
  config.network.activation = 'tanh'
  config.network.separate_baseline = True
  config.loss.discount = 0.98
  config.loss.lambda_ = 0.8
  config.optimizer.learning_rate = 1e-3
  return config
