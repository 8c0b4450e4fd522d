"""All keys of a run except the agent's own, with their defaults.

Each package declares its keys in `keys.py`.
"""

from collections.abc import Callable

import ml_collections

from seedrl_jax.actors import keys as actors_keys
from seedrl_jax.agents.vtrace import keys as vtrace_keys
from seedrl_jax.demonstrations import keys as demonstrations_keys
from seedrl_jax.envs import keys as envs_keys
from seedrl_jax.hosts import keys as hosts_keys
from seedrl_jax.learner import keys as learner_keys
from seedrl_jax.networks import keys as networks_keys
from seedrl_jax.replay import keys as replay_keys
from seedrl_jax.run import keys as run_keys
from seedrl_jax.runtime import keys, settings
from seedrl_jax.workers import keys as workers_keys

KEYS: keys.Table = {
  **run_keys.KEYS,
  **envs_keys.KEYS,
  **networks_keys.KEYS,
  **replay_keys.KEYS,
  **demonstrations_keys.KEYS,
  **learner_keys.KEYS,
  **actors_keys.KEYS,
  **hosts_keys.KEYS,
  **workers_keys.KEYS,
  **run_keys.LAST_KEYS,
}
ALLOWED = keys.allowed(KEYS)
# The same for a configuration that another machine may have written.
SAVED = ALLOWED | dict.fromkeys(
  ('env.thread_affinity_offset', 'topology.inference_affinity_offset'),
  settings.integer(-1, settings.COUNT),
)

# Editors and type checkers see its keys, in base.pyi.
Config = ml_collections.ConfigDict


def get_config(
  set_agent: Callable[
    [ml_collections.ConfigDict], None
  ] = vtrace_keys.set_defaults,
) -> Config:
  """Returns CartPole-v1 with all defaults, and the keys of `set_agent`."""
  config = ml_collections.ConfigDict()
  keys.set_defaults(config, KEYS)
  set_agent(config)
  return config


def set_atari_protocol(config: ml_collections.ConfigDict) -> None:
  """Sets the environment conventions that the Atari configurations share.

  From Machado et al. 2018 (arXiv 1709.06009): sticky actions with probability
  0.25, all 18 actions, and no end of the episode or return at a lost life.

  From Cleanba (arXiv 2310.00036): one no-op and FIRE at each reset, at most
  108,000 frames per episode, and rewards clipped to their sign for training.
  Reported returns are not clipped.
  """
  env = config.env
  env.id = 'Pong-v5'
  env.frame_skip = 4
  env.repeat_action_probability = 0.25
  env.full_action_space = True
  env.noop_max = 1
  env.use_fire_reset = True
  env.episodic_life = False
  env.zero_discount_on_life_loss = False
  env.max_episode_steps = 27_000
  env.reward_clip = True
  config.network.frame_stack = 4


def set_concurrent_task(config: ml_collections.ConfigDict) -> None:
  """Sets the task of `concurrent/`: LunarLander-v2 until it is solved."""
  config.env.id = 'LunarLander-v2'
  config.num_eval_envs = 0
  config.total_env_frames = 3_000_000
  config.target_return = 200.0
  config.optimizer.schedule = 'constant'
  config.log.every_seconds = 0.5
  config.log.writers = ('csv',)
