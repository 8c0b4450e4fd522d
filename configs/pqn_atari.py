"""PQN on Atari with the authors' settings; Pong by default.

128 environments, 32 steps, two epochs of 32 minibatches, lambda 0.65, RAdam at
2.5e-4, epsilon from 1 to 0.001 within a tenth of 40 million frames, Nature's
convolutions with layer norm, and clipped rewards (purejaxql, the code of arXiv
2407.04811). Differences (in brackets: the authors' code):

* environments follow the protocol of Machado et al. 2018: sticky actions
  (none), 18 actions (the minimal set), one no-op (up to 30), and a lost life
  has no effect on episode or discount (ends the episode);
* a minibatch is four unrolls of 32 steps, not 128 single steps;
* acting and learning overlap, so targets are of newer parameters than those
  that acted (the same);
* frames are stacked in the agent's state, with zeros before an episode (copies
  of its first frame);
* layer norm is over all outputs of a convolution (over channels), and initial
  weights are orthogonal (He's).

For two CPU cores take --config.network.torso=shallow.
"""

import ml_collections

from seedrl_jax.agents.pqn import keys as pqn_keys
from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config(pqn_keys.set_defaults)
  config.total_env_frames = 40_000_000
  base.set_atari_protocol(config)
  config.env.num_envs = 128
  config.network.torso = 'nature'
  config.unroll_length = 32
  config.batch_size = 128
  return config
