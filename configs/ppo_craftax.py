"""PPO on Craftax-Classic in JAX, with symbols: for an accelerator.

Settings of Craftax_Baselines' `ppo.py`: 1,024 environments, unrolls of 64
steps, 4 epochs of 8 minibatches, a learning rate of 2e-4 that decays to 0 over
a billion frames, clipped values, and three layers of 512 units for each of
policy and value. A truncated episode bootstraps. Acting and training alternate,
as steps that were a batch old taught a fifth less: a third of them was clipped.
More than one stream needs `learner.max_lag=1`. Needs the extra `craftax`.
"""

from seedrl_jax.configs import base, ppo_minatar


def get_config() -> base.Config:
  config = ppo_minatar.get_config()
  config.env.id = 'craftax:Craftax-Classic-Symbolic-v1'
  config.total_env_frames = config.optimizer.decay_frames = 1_000_000_000
  config.env.num_envs = config.batch_size = 1024
  config.unroll_length = 64
  config.learner.max_lag = 0
  config.network.hidden_sizes = (512, 512, 512)
  config.network.activation = 'tanh'
  config.loss.lambda_ = 0.8
  config.loss.value_clip = 0.2
  config.optimizer.learning_rate = 2e-4
  config.optimizer.clip_norm = 1.0
  return config
