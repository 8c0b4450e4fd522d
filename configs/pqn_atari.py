"""PQN on Atari with the authors' settings; Pong by default.

128 environments, 32 steps, two epochs of 32 minibatches, lambda 0.65, RAdam at
2.5e-4, epsilon from 1 to 0.001 within a tenth of 40 million frames, Nature's
convolutions with layer norm, clipped rewards, no sticky actions, up to 30
no-ops, the minimal action set (purejaxql, the code of arXiv 2407.04811).
Differences:

* a minibatch is four unrolls of 32 steps, not 128 single steps;
* acting and learning overlap, so targets are of newer parameters than those
  that acted (the same);
* a lost life ends the return but not the episode, so that scores are of whole
  games;
* frames are stacked in the agent's state, with zeros before an episode (copies
  of its first frame);
* layer norm is over all outputs of a convolution (over channels), and initial
  weights are orthogonal (He's).

For two CPU cores take --config.network.torso=shallow.
"""

import ml_collections

from seedrl_jax.agents.pqn import config as pqn_config
from seedrl_jax.configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config(pqn_config.set_defaults)
  config.total_env_frames = 40_000_000
  config.env.id = 'Pong-v5'
  config.env.num_envs = 128
  config.env.frame_skip = 4
  config.env.zero_discount_on_life_loss = True
  config.env.reward_clip = True
  config.env.repeat_action_probability = 0.0
  config.env.noop_max = 30
  config.network.torso = 'nature'
  config.network.frame_stack = 4
  config.unroll_length = 32
  config.batch_size = 128
  return config
