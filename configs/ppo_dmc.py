"""PPO on DeepMind Control tasks of EnvPool; CheetahRun-v1 by default.

As `ppo_mujoco`, with 8 million frames; observations of several arrays are
concatenated.
"""

from seedrl_jax.configs import base, ppo_mujoco


def get_config() -> base.Config:
  config = ppo_mujoco.get_config()
  config.env.id = 'CheetahRun-v1'
  config.total_env_frames = config.optimizer.decay_frames = 8_000_000
  return config
