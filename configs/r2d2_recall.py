"""R2D2 on a memory task: minutes on two CPU cores.

A cue in the first step, the question for it 10 to 20 steps later
(`seedrl_jax/envs/recall.py`). Without memory (--config.network.lstm_size=0
--config.network.use_previous_action=False) nothing beats 1 / 4. With the
previous action as an input even such a network has one: it may act out the cue
at every step, so both must go.
"""

import ml_collections

from configs import r2d2_base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = r2d2_base.get_config()
  config.env.id = 'Recall'
  config.env.factory = 'seedrl_jax.envs.recall:make'
  config.total_env_frames = 400_000
  config.env.num_envs = 16
  config.unroll_length = 20
  config.burn_in = 10
  config.batch_size = 32
  config.network.hidden_sizes = (64,)
  config.network.lstm_size = 64
  config.network.head_hidden_size = 64
  config.network.use_previous_action = False
  config.loss.target_update_period = 100
  config.loss.discount = 0.99
  config.loss.reduction = 'mean'
  config.optimizer.learning_rate = 1e-3
  config.optimizer.epsilon = 1e-5
  config.optimizer.schedule = 'linear'
  config.replay.max_size = 5_000
  config.replay.min_size = 250
  config.replay.samples_per_insert = 8.0
  return config
