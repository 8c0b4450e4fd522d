"""R2D2 on Atari as in SEED RL (arXiv 1910.06591 and its code); Pong by default.

Environment conventions are SEED's: no sticky actions, all 18 actions, unclipped
rewards, up to 30 no-ops, no FIRE at a reset, at most 108,000 frames, and a lost
life has no effect on episode or discount. docs/agents/r2d2.md lists the
differences.

A sequence is about a megabyte of frames before compression: 100,000 need a
Reverb server (5 to 10 GB for Pong). For small hosts see configs/r2d2_pong.py.
"""

from seedrl_jax.configs import base, r2d2_base


def get_config() -> base.Config:
  config = r2d2_base.get_config()
  config.total_env_frames = 200_000_000
  config.num_eval_envs = 4
  config.env.id = 'Pong-v5'
  config.env.num_envs = 64
  config.env.frame_skip = 4
  config.env.episodic_life = False
  config.env.repeat_action_probability = 0.0
  config.env.noop_max = 30
  config.env.use_fire_reset = False
  config.env.max_episode_steps = 27_000
  config.env.full_action_space = True
  config.env.reward_clip = False
  config.network.torso = 'nature'
  config.network.frame_stack = 4
  config.replay.min_size = 1_000
  return config
