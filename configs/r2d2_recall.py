"""R2D2 on a memory task: minutes on two CPU cores.

A cue in the first step, the question 10 to 20 steps later
(`seedrl_jax/envs/recall.py`). Without memory, the best return is 1 / 4. The
previous action would be a memory too, so a comparison needs both
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
