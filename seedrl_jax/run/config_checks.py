"""The values that the keys of `configs/base.py` may have; see `settings`.

Conditions on several keys, or on the environment, are checked elsewhere.
"""

import os
from collections.abc import Mapping

import ml_collections

from seedrl_jax.runtime import settings
from seedrl_jax.runtime.settings import (
  FLAG,
  SECTION,
  TEXT,
  Allowed,
  each,
  integer,
  number,
  one_of,
  optional,
)

_LAST_PROCESSOR = max(os.sched_getaffinity(0))
_PROCESSOR = integer(-1, _LAST_PROCESSOR)._replace(
  words=f"give a processor, up to this machine's {_LAST_PROCESSOR}, or -1"
)
# Longer waits overflow the system's time-outs.
_SECONDS = number(0, 10**9)

RANGES: dict[str, Allowed] = {
  'agent': TEXT,
  # Seeds 2^32 apart give the same JAX key, 2^31 apart the same EnvPool seed.
  'seed': integer(0, 2**31 - 1),
  'total_env_frames': integer(1),
  'num_eval_envs': integer(0),
  'unroll_length': integer(1),
  'batch_size': integer(1),
  'deterministic': FLAG,
  'env.id': TEXT,
  'env.factory': TEXT,
  'env.factory_kwargs': SECTION,
  'env.num_envs': integer(0),
  'env.processes': integer(0, 1024),
  'env.batch_size': integer(0),
  # With more than the system allows, EnvPool ends the process.
  'env.num_threads': integer(0, 1024),
  'env.thread_affinity_offset': _PROCESSOR,
  'env.max_episode_steps': optional(integer(1)),
  'env.frame_skip': optional(integer(1)),
  'env.stack_num': optional(integer(1)),
  'env.noop_max': optional(integer(1)),
  'env.episodic_life': optional(FLAG),
  'env.zero_discount_on_life_loss': optional(FLAG),
  'env.reward_clip': optional(FLAG),
  'env.use_fire_reset': optional(FLAG),
  'env.full_action_space': optional(FLAG),
  'env.repeat_action_probability': optional(number(0, 1)),
  'env.options': SECTION,
  'env.drop_observations': each(TEXT),
  'network.torso': one_of(
    *('auto', 'mlp', 'resnet', 'nature', 'shallow', 'tiny', 'grid'),
    or_function=True,
  ),
  'network.hidden_sizes': each(integer(1)),
  'network.dense_size': integer(0),
  'network.width': integer(1),
  'network.resnet_channels': each(integer(1)),
  'network.frame_stack': integer(1),
  'network.image_layout': one_of('auto', 'channels_first', 'channels_last'),
  'network.lstm_size': integer(0),
  'network.use_previous_action': FLAG,
  'network.previous_reward_clip': number(0),
  'network.compute_dtype': one_of('float32', 'bfloat16'),
  'replay.backend': one_of('embedded', 'reverb', 'auto'),
  'replay.address': TEXT,
  'replay.patience': _SECONDS,
  'replay.sampler': one_of('fifo', 'uniform', 'prioritized'),
  'replay.max_size': optional(integer(1)),
  'replay.max_times_sampled': integer(0),
  'replay.samples_per_insert': number(0),
  'replay.tolerance': number(0),
  'replay.min_size': integer(1),
  'replay.priority_exponent': number(0),
  'replay.importance_exponent': number(0, 1),
  'demonstrations.path': TEXT,
  'demonstrations.fraction': number(0, below=1),
  'demonstrations.max_size': optional(integer(1)),
  'topology.inference_to_training': TEXT,
  'topology.streams_per_device': integer(1),
  'topology.max_devices': integer(0),
  'topology.inference_affinity_offset': _PROCESSOR,
  'actors.max_envs': integer(0),
  'actors.local_inference': FLAG,
  'actors.addresses': each(TEXT),
  'actors.batch_size': integer(0),
  'actors.min_batch_size': integer(1),
  'actors.batch_timeout_ms': _SECONDS,
  'actors.timeout': number(0.01, 10**9),
  'actors.tls_certificate': TEXT,
  'actors.tls_key': TEXT,
  'actors.token_file': TEXT,
  'actors.insecure': FLAG,
  'learner.micro_batches': integer(1),
  'learner.prefetch': integer(1),
  'learner.publish_period': integer(1),
  'hosts.timeout': number(1, 10**9),
  'hosts.check_period': integer(1),
  'checkpoint.every_seconds': _SECONDS,
  'checkpoint.keep': integer(1),
  'checkpoint.replay': FLAG,
  # Hours; about a century.
  'checkpoint.keep_every_hours': number(0, 10**6),
  'log.every_seconds': number(0.01, 10**9),
  'log.tensorboard': FLAG,
}


def check(
  config: ml_collections.ConfigDict, own: Mapping[str, Allowed] | None = None
) -> None:
  """Checks a run's configuration; `own` is the agent's table.

  Without a table, the agent's section may have any keys.

  Raises:
    ValueError: if a value is wrong; names the flag and what it can be.
  """
  settings.check(config, RANGES | dict(own or {}), complete=bool(own))
