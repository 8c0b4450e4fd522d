"""V-trace on Atari with IMPALA's shallow network; Pong by default.

Environment conventions are Cleanba's defaults (Huang et al. 2023): no sticky
actions, one no-op and EnvPool's FIRE at a reset, at most 108,000 frames,
clipped rewards. But a lost life ends the episode, and FIRE follows; scores are
of whole games all the same. Otherwise a game like Breakout takes many times the
frames, as losing the ball costs next to nothing. The action set is the minimal
one, as in most published V-trace figures (--config.env.full_action_space=True
for all 18), and frames are stacked in the agent's state.

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
  config.total_env_frames = 20_000_000
  config.num_eval_envs = 2
  config.env.id = 'Pong-v5'
  config.env.num_envs = 32
  config.env.frame_skip = 4
  config.env.episodic_life = True
  config.env.repeat_action_probability = 0.0
  config.env.noop_max = 1
  config.env.max_episode_steps = 27_000
  config.env.full_action_space = False
  config.env.reward_clip = True
  config.network.torso = 'shallow'
  config.network.frame_stack = 4
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
