"""V-trace on Atari with IMPALA's deep ResNet and LSTM, for an accelerator.

The network is that of SEED RL for DMLab, plus frame stacking, in bfloat16; the
optimiser and the loss are IMPALA's (arXiv 1802.01561, table G.1). Environments
follow the protocol of Machado et al. 2018. docs/agents/vtrace.md has the
details.
"""

from seedrl_jax.configs import base, vtrace_atari


def get_config() -> base.Config:
  config = vtrace_atari.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 200_000_000
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
  config.optimizer.warmup_frames = 0
  config.optimizer.epsilon = 0.01
  config.optimizer.clip_norm = 160.0
  return config
