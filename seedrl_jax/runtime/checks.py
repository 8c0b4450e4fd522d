"""Checks of a configuration that no single room makes; `builder` calls it."""

from typing import Any

# Keys that count something, and the least that makes sense.
_LEAST = {
  'total_env_frames': 1,
  'env.num_envs': 1,
  'num_eval_envs': 0,
  'unroll_length': 1,
  'batch_size': 1,
  'learner.micro_batches': 1,
  'learner.publish_period': 1,
  'topology.streams_per_device': 1,
  'checkpoint.keep': 1,
  'checkpoint.every_seconds': 0,
  'log.every_seconds': 0.01,
}


def check_numbers(config: Any) -> None:
  """Checks what counts something.

  Raises:
    ValueError: naming the flag and the least it can be.
  """
  for key, least in _LEAST.items():
    section, _, name = key.rpartition('.')
    value = (config[section] if section else config)[name]
    if value < least:
      raise ValueError(f'--config.{key}={value}: give at least {least}.')
