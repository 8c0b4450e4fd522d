"""V-trace on Atari with IMPALA's shallow network; Pong by default.

Environments follow the protocol of Machado et al. 2018
(`base.set_atari_protocol`), and frames are stacked in the agent's state.

The settings of IMPALA (arXiv 1802.01561, table G.1) learn Boxing late or, as
pixels kill the network, not at all: see docs/agents/vtrace.md. Differences (in
brackets: the paper's settings, as TorchBeast and Cleanba have them):

* pixels are normalised by their running means and standard deviations
  (`network.normalize_pixels`; divided by 255);
* traces are multiplied by a lambda of 0.8 (1);
* the entropy cost is 0.002 (0.01);
* Adam; the rate rises to 6e-4 over 0.3 million frames and falls to 0 at 40
  million (RMSProp; from 6e-4 to 0 over 200 million);
* the loss is the mean over 8 unrolls of 20 steps, and its gradient is clipped
  at a norm of 0.5 (the sum over 32, clipped at 40);
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
  config.network.normalize_pixels = True
  config.batch_size = 8
  config.loss.lambda_ = 0.8
  config.loss.entropy_cost = 0.002
  config.optimizer.learning_rate = 6e-4
  config.optimizer.decay_frames = config.total_env_frames
  config.optimizer.warmup_frames = 300_000
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
  return config
