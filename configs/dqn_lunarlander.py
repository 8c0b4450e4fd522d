"""DQN on LunarLander-v2.

Network, batch, learning rate and Huber loss are those of Stable-Baselines3's
tuned settings (hyperparams/dqn.yml of DLR-RM/rl-baselines3-zoo at commit
f1064a7); the rest differs (in brackets: theirs):

* a million frames with 8 samples each (100,000 with 128), from 16 environments
  (1);
* a learning rate that decays to 0 (constant);
* a target every 500 updates, 8,000 frames (250 frames);
* a replay of 100,000 (50,000), and a first update at 10,000 (at once);
* an epsilon of 0.05 from 200,000 frames on (0.1 from 12,000);
* gradients are not clipped (at norm 10);
* initial weights are orthogonal, and normal in the last layer (uniform).
"""

from seedrl_jax.configs import base, dqn_cartpole


def get_config() -> base.Config:
  config = dqn_cartpole.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 1_000_000
  config.env.id = 'LunarLander-v2'
  config.network.hidden_sizes = (256, 256)
  config.loss.huber_delta = 1.0
  config.loss.target_update_period = 500
  config.exploration.decay_frames = 200_000
  config.optimizer.learning_rate = 6.3e-4
  config.replay.max_size = 100_000
  config.replay.samples_per_insert = 8.0
  return config
