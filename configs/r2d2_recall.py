"""R2D2 on a memory task: minutes on two CPU cores.

A cue in the first step, the question for it 10 to 20 steps later
(`seedrl_jax/envs/recall.py`). Without memory (--config.network.lstm_size=0
--config.network.use_previous_action=False) nothing beats 1 / 4. With the
previous action as an input even such a network has one: it may act out the cue
at every step, so both must go.
"""

import ml_collections

from configs import r2d2_small


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = r2d2_small.get_config()
  config.env.factory = 'seedrl_jax.envs.recall:make'
  config.total_env_frames = 400_000
  config.burn_in = 10
  config.network.use_previous_action = False
  return config
