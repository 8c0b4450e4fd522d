"""Options for EnvPool from the `env` section of a config."""

from collections.abc import Mapping
from typing import Any

import ml_collections

from seedrl_jax.envs import registry

# Options with a config key of their own; None keeps EnvPool's default.
NAMED = (
  'episodic_life',
  'frame_skip',
  'full_action_space',
  'max_episode_steps',
  'noop_max',
  'repeat_action_probability',
  'reward_clip',
  'stack_num',
  'use_fire_reset',
  'zero_discount_on_life_loss',
)

# Options that the stream sets, and the flags that control them.
_RESERVED = {
  'batch_size': '--config.env.batch_size',
  'env_seed': '--config.seed',
  'num_envs': '--config.env.num_envs',
  'num_threads': '--config.env.num_threads',
  'seed': '--config.seed',
  'thread_affinity_offset': '--config.env.thread_affinity_offset',
}


def set_options(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the options that are set by a config key of their own."""
  values = {name: config.get(name) for name in NAMED}
  return {name: value for name, value in values.items() if value is not None}


def envpool_options(
  config: ml_collections.ConfigDict, defaults: Mapping[str, Any]
) -> dict[str, Any]:
  """Returns the checked options for `envpool.make`; `defaults` has all.

  `stack_num` defaults to 1: the agent stacks frames on the device, so that each
  frame is stored once.

  Raises:
    ValueError: if the id does not know an option or would ignore it.
  """
  options = set_options(config)
  for name in options:
    if name not in defaults:
      raise ValueError(
        f'--config.env.{name}: {config.id} has no such option; leave it unset.'
      )
  if 'max_episode_steps' in options and not registry.obeys_time_limit(
    config.id, defaults['max_episode_steps']
  ):
    raise ValueError(
      f'--config.env.max_episode_steps: EnvPool does not end episodes of '
      f'{config.id} by it; leave it unset.'
    )
  if 'stack_num' in defaults:
    options.setdefault('stack_num', 1)
  return options | _further_options(config, defaults)


def _further_options(
  config: ml_collections.ConfigDict, defaults: Mapping[str, Any]
) -> dict[str, Any]:
  further = dict(config.options.items())
  for name in further:
    flag = f'--config.env.options.{name}'
    if name in NAMED:
      raise ValueError(f'{flag}: use --config.env.{name}.')
    if name in _RESERVED:
      raise ValueError(f'{flag}: use {_RESERVED[name]}.')
    if name not in defaults:
      raise ValueError(
        f'{flag}: {config.id} has no such option; the nearest is '
        f'{registry.nearest(name, defaults)}.'
      )
  return further


def check_pool_size(num_envs: int, batch_size: int) -> None:
  """Raises ValueError if the sizes are out of range."""
  if num_envs < 1:
    raise ValueError(f'--config.env.num_envs={num_envs}: must be at least 1.')
  if not 1 <= batch_size <= num_envs:
    raise ValueError(
      f'--config.env.batch_size={batch_size}: must be between 1 and the '
      f"stream's {num_envs} environments."
    )
