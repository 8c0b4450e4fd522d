"""V-trace on Atari with IMPALA's shallow network; Pong by default.

Environments follow the protocol of Machado et al. 2018
(`base.set_atari_protocol`), and frames are stacked in the agent's state. The
settings of IMPALA (arXiv 1802.01561, table G.1) learn Boxing late or, as pixels
kill the network, not at all; docs/agents/vtrace.md lists the differences.
"""

from seedrl_jax.configs import base


def get_config() -> base.Config:
  config = base.get_config()
  config.total_env_frames = config.optimizer.decay_frames = 40_000_000
  config.num_eval_envs = 2
  base.set_atari_protocol(config)
  config.env.num_envs = 64
  config.network.torso = 'shallow'
  config.network.normalize_pixels = True
  config.batch_size = 8
  config.loss.lambda_ = 0.8
  config.loss.entropy_cost = 0.002
  config.optimizer.learning_rate = 6e-4
  config.optimizer.warmup_frames = 300_000
  config.optimizer.epsilon = 1e-5
  config.optimizer.clip_norm = 0.5
  return config
