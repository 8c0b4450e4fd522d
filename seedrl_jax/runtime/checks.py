"""Checks of a configuration that no single room makes; `builder` calls it."""

from typing import Any

from seedrl_jax import settings

# Keys that are numbers, and the range that makes sense.
_RANGES: dict[str, settings.Range] = {
  'total_env_frames': settings.at_least(1),
  'env.num_envs': settings.at_least(0),
  'env.processes': settings.at_least(0),
  'num_eval_envs': settings.at_least(0),
  'unroll_length': settings.at_least(1),
  'batch_size': settings.at_least(1),
  'learner.micro_batches': settings.at_least(1),
  'learner.publish_period': settings.at_least(1),
  'topology.streams_per_device': settings.at_least(1),
  'actors.max_envs': settings.at_least(0),
  'actors.batch_size': settings.at_least(0),
  'actors.min_batch_size': settings.at_least(1),
  'actors.batch_timeout_ms': settings.at_least(0),
  'actors.timeout': settings.at_least(0.01),
  'hosts.timeout': settings.at_least(1),
  'hosts.check_period': settings.at_least(1),
  'checkpoint.keep': settings.at_least(1),
  'checkpoint.every_seconds': settings.at_least(0),
  'log.every_seconds': settings.at_least(0.01),
  'network.previous_reward_clip': settings.at_least(0),
  'replay.importance_exponent': (0, 1),
}


def check_numbers(config: Any) -> None:
  """Checks the numbers that are of no single room.

  Raises:
    ValueError: naming the flag and what it can be.
  """
  settings.check_ranges(config, _RANGES)
