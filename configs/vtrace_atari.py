"""V-trace on Atari with IMPALA's shallow network; Pong by default.

Environments follow the protocol of Machado et al. 2018
(`base.set_atari_protocol`), and frames are stacked in the agent's state.

Network, unroll, discount, entropy cost, baseline cost and learning rate are
IMPALA's (arXiv 1802.01561, table G.1), and the rate decays over 200 million
frames, as there. Differences (in brackets: the paper):

* each patch's mean is subtracted before the first convolution
  (`network.contrast`; not in the paper); without it the network died on Boxing,
  see docs/agents/vtrace.md;
* batches of 16 unrolls (32), losses averaged over a batch (summed);
* Adam with epsilon 1e-5 (RMSProp, epsilon 0.01, decay 0.99), and gradients
  clipped at a norm of 0.5 (40 of the sum, 0.06 of the mean);
* lambda 0.95 (1);
* 40 million frames (200 million).
"""

import ml_collections

from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config()
  config.total_env_frames = 40_000_000
  config.num_eval_envs = 2
  base.set_atari_protocol(config)
  config.env.num_envs = 64
  config.network.torso = 'shallow'
  config.network.contrast = 4.0
  config.batch_size = 16
  config.optimizer.learning_rate = 6e-4
  config.optimizer.decay_frames = 200_000_000
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
  config.loss.entropy_cost = 0.01
  config.loss.lambda_ = 0.95
  return config
