"""V-trace on Atari with IMPALA's shallow network; Pong unless told otherwise.

Environment conventions are Cleanba's defaults (Huang et al. 2023): no life
loss as an episode's end, no sticky actions, one no-op and EnvPool's FIRE at a
reset, 108,000 frames at most, rewards clipped while learning. Two differ: the
minimal action set, which most published V-trace figures use
(`--config.env.full_action_space=True` for all 18), and frames are stacked in
the agent's state, not by EnvPool.

Network, unroll, discount, baseline cost and learning rate are IMPALA's (arXiv
1802.01561, table G.1). All else is for results in short runs:

* entropy cost 0.002 (the paper has 0.01) and lambda 0.95 (1);
* batches of 8 unrolls (32);
* losses averaged over a batch (summed);
* Adam with epsilon 1e-5 (RMSProp, epsilon 0.01, decay 0.99), and gradients
  clipped at a norm of 0.5 (40 of the sum, 0.06 of the mean);
* a learning rate that decays over this run's 20 million frames (200 million).
"""

import ml_collections

from configs import base


def get_config() -> ml_collections.ConfigDict:
  """Returns the configuration."""
  config = base.get_config()
  config.total_env_frames = 20_000_000
  config.num_eval_envs = 2
  config.env.id = 'Pong-v5'
  config.env.num_envs = 32
  config.env.frame_skip = 4
  config.env.episodic_life = False
  config.env.repeat_action_probability = 0.0
  config.env.noop_max = 1
  config.env.max_episode_steps = 27_000
  config.env.full_action_space = False
  config.env.reward_clip = True
  config.network.torso = 'shallow'
  config.network.frame_stack = 4
  # A quarter of IMPALA's: four times the updates in the same frames, which a
  # run of millions of frames, not hundreds of millions, needs.
  config.batch_size = 8
  config.optimizer.learning_rate = 6e-4
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
  # A fifth of IMPALA's: with advantages of a few hundredths, 0.01 holds the
  # policy at uniform for millions of frames.
  config.loss.entropy_cost = 0.002
  config.loss.lambda_ = 0.95
  return config
