"""V-trace on Atari with IMPALA's shallow network; Pong by default.

Environments follow the protocol of Machado et al. 2018
(`base.set_atari_protocol`), and frames are stacked in the agent's state.

Settings are IMPALA's (arXiv 1802.01561, table G.1), as TorchBeast and Cleanba
have them: batches of 32 unrolls of 20 steps, summed losses, RMSProp with an
epsilon of 0.01 outside the root, gradients clipped at a norm of 40, entropy
cost 0.01, and a rate of 6e-4 that decays over 200 million frames. Differences
(in brackets: the paper):

* each patch's mean is subtracted before the first convolution
  (`network.contrast`; pixels as they are); without it the network died on
  Boxing, see docs/agents/vtrace.md;
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
  config.loss.reduction = 'sum'
  config.optimizer.name = 'rmsprop'
  config.optimizer.learning_rate = 6e-4
  config.optimizer.decay_frames = 200_000_000
  config.optimizer.epsilon = 0.01
  config.optimizer.clip_norm = 40.0
  return config
