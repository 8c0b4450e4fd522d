"""V-trace on Atari with IMPALA's deep ResNet and LSTM, for an accelerator.

Environments follow the protocol of Machado et al. 2018. The network is that of
SEED RL for DMLab: ResNet (16, 32, 32), LSTM 256, previous action and clipped
previous reward; plus frame stacking, as IMPALA has on Atari, and without
contrast. It runs in bfloat16, with 256 environments and batches of 128 unrolls,
for 200 million frames.
"""

import ml_collections

from seedrl_jax.configs import vtrace_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = vtrace_atari.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 200_000_000
  config.num_eval_envs = 8
  config.env.num_envs = 256
  config.network.torso = 'resnet'
  config.network.contrast = 0.0
  config.network.lstm_size = 256
  config.network.use_previous_action = True
  config.network.compute_dtype = 'bfloat16'
  config.network.tpu_chunk = 128
  config.batch_size = 128
  # Four times as much as for the sum over 32 unrolls.
  config.optimizer.clip_norm = 160.0
  return config
