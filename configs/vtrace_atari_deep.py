"""V-trace on Atari with IMPALA's deep ResNet and LSTM, for an accelerator.

Environment conventions, and what differs from the paper, as in `vtrace_atari`.
The network is the one that SEED RL trained on DMLab: ResNet (16, 32, 32), LSTM
256, previous action and clipped previous reward; frames are stacked all the
same, as IMPALA does on Atari. Ours are bfloat16, 256 environments and batches
of 128 unrolls, over 200 million frames.
"""

import ml_collections

from configs import vtrace_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = vtrace_atari.get_config()
  config.total_env_frames = 200_000_000
  config.num_eval_envs = 8
  config.env.num_envs = 256
  config.network.torso = 'resnet'
  config.network.lstm_size = 256
  config.network.use_previous_action = True
  config.network.compute_dtype = 'bfloat16'
  config.batch_size = 128
  return config
