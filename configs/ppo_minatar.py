"""PPO on MinAtar in JAX, by default Breakout: two minutes on two CPU cores.

Settings of PureJaxRL's PPO for MinAtar: 64 environments, unrolls of 128 steps,
4 epochs of 8 minibatches, a learning rate that decays to 0, and two layers of
64 units. The rate is 3e-3, not 5e-3, with which Asterix learns less. A
truncated episode bootstraps. Needs the extra `gymnax`.
"""

from seedrl_jax.configs import base, ppo_cartpole


def get_config() -> base.Config:
  config = ppo_cartpole.get_config()
  config.env.id = 'gymnax:Breakout-MinAtar'
  config.total_env_frames = config.optimizer.decay_frames = 10_000_000
  config.env.num_envs = config.batch_size = 64
  config.unroll_length = 128
  config.epochs, config.minibatches = 4, 8
  config.network.torso = 'mlp'
  config.network.activation = 'relu'
  config.loss.discount = 0.99
  config.loss.lambda_ = 0.95
  config.loss.entropy_cost = 0.01
  config.optimizer.learning_rate = 3e-3
  return config
