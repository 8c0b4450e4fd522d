"""SAC on Pendulum-v1: minutes on two CPU cores.

Settings of Stable-Baselines3's zoo (20,000 frames, an update of 256 transitions
for each, learning rate 1e-3), with four environments instead of one and 1,000
random frames instead of 100. The rest is as in `sac_mujoco`: eight minibatches
in one call, steps taken at once, initial weights and bounds of the deviation
(theirs: e^-20 and e^2, clipped).
"""

from seedrl_jax.configs import base, sac_mujoco


def get_config() -> base.Config:
  config = sac_mujoco.get_config()
  config.env.id = 'Pendulum-v1'
  config.env.num_envs = 4
  config.num_eval_envs = 4
  config.total_env_frames = 20_000
  config.optimizer.policy_factor = 1.0
  config.replay.max_size = 20_000
  config.replay.min_size = 1_000
  return config
