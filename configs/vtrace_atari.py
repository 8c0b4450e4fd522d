"""V-trace on Atari with IMPALA's shallow network; Pong by default.

Environments follow the protocol of Machado et al. 2018
(`base.set_atari_protocol`), and frames are stacked in the agent's state.

Network, unroll, discount, baseline cost and learning rate are IMPALA's (arXiv
1802.01561, table G.1). The rest is for short runs (in brackets: the paper):

* entropy cost 0.002 (0.01) and lambda 0.95 (1);
* batches of 8 unrolls (32);
* losses averaged over a batch (summed);
* Adam with epsilon 1e-5 (RMSProp, epsilon 0.01, decay 0.99), and gradients
  clipped at a norm of 0.5 (40 of the sum, 0.06 of the mean);
* a learning rate that decays over 20 million frames (200 million).
"""

import ml_collections

from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 20_000_000
  config.num_eval_envs = 2
  base.set_atari_protocol(config)
  config.env.num_envs = 32
  config.network.torso = 'shallow'
  # A quarter of IMPALA's: a run of few frames needs four times the updates.
  config.batch_size = 8
  config.optimizer.learning_rate = 6e-4
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
  # A fifth of IMPALA's: with advantages of a few hundredths, 0.01 keeps the
  # policy uniform for millions of frames.
  config.loss.entropy_cost = 0.002
  config.loss.lambda_ = 0.95
  return config
