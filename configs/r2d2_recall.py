"""R2D2 on the memory task `envs/recall.py`: minutes on two CPU cores.

The previous action would be a memory too, so a comparison needs both
--config.network.lstm_size=0 --config.network.use_previous_action=False.
"""

from seedrl_jax.configs import base, r2d2_cartpole


def get_config() -> base.Config:
  config = r2d2_cartpole.get_config()
  config.env.factory = 'seedrl_jax.envs.recall:make'
  config.total_env_frames = config.optimizer.decay_frames = 400_000
  config.burn_in = 10
  config.network.use_previous_action = False
  config.loss.discount = 0.99
  return config
