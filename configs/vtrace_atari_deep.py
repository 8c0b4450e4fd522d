"""V-trace on Atari with IMPALA's deep ResNet and LSTM, for an accelerator.

Environments follow the protocol of Machado et al. 2018. The network is that of
SEED RL for DMLab: ResNet (16, 32, 32), LSTM 256, previous action and clipped
previous reward; plus frame stacking, as IMPALA has on Atari. It runs in
bfloat16, with 256 environments and batches of 128 unrolls, for 200 million
frames.

The optimiser and the loss are IMPALA's (arXiv 1802.01561, table G.1), as
TorchBeast and Cleanba have them: RMSProp with an epsilon of 0.01 outside the
root, summed losses, entropy cost 0.01, and a rate of 6e-4 that decays over 200
million frames. The norm clip of 160 is four times theirs, for a sum over four
times as many unrolls.
"""

import ml_collections

from seedrl_jax.configs import vtrace_atari


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = vtrace_atari.get_config()
  config.total_env_frames = 200_000_000
  config.num_eval_envs = 8
  config.env.num_envs = 256
  config.network.torso = 'resnet'
  config.network.normalize_pixels = False
  config.network.lstm_size = 256
  config.network.use_previous_action = True
  config.network.compute_dtype = 'bfloat16'
  config.network.tpu_chunk = 128
  config.batch_size = 128
  config.loss.lambda_ = 1.0
  config.loss.entropy_cost = 0.01
  config.loss.reduction = 'sum'
  config.optimizer.name = 'rmsprop'
  config.optimizer.learning_rate = 6e-4
  config.optimizer.decay_frames = 200_000_000
  config.optimizer.warmup_frames = 0
  config.optimizer.epsilon = 0.01
  config.optimizer.clip_norm = 160.0
  return config
