"""The values that the keys of all configurations may have, as data."""

from seedrl_jax.runtime import process
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
from seedrl_jax.runtime.writers import base

_LAST_PROCESSOR = max(process.PROCESSORS)
_PROCESSOR = integer(-1, _LAST_PROCESSOR)._replace(
  words=f"give a processor, up to this machine's {_LAST_PROCESSOR}, or -1"
)
_WRITER = each(one_of(*base.BUILT_IN, or_function=True))
_WRITERS = Allowed(
  lambda x: _WRITER.admits(x) and 'csv' in x and len({*x}) == len(x),
  _WRITER.words + ", each once and csv among them, as \"'csv','jsonl'\"",
)
# Longer waits overflow the system's time-outs.
_SECONDS = number(0, 10**9)

# Bounds far above what any run needs, so that an absurd number is one sentence
# rather than a machine without memory, or a compilation that never ends.
UNITS = 10**5  # of a layer
STEPS = 10**5  # of a sequence
COUNT = 10**6  # of environments, unrolls or pieces
LARGE = 10**9  # of what takes little memory, or takes it at once
# Steps of an evaluated episode, over nine hours of Atari: only one that never
# ends is as long.
EPISODE = 500_000

# The values that the keys of `configs/base.py` may have; see `settings`.
RANGES: dict[str, Allowed] = {
  'agent': TEXT,
  # Seeds 2^32 apart give the same JAX key, 2^31 apart the same EnvPool seed.
  'seed': integer(0, 2**31 - 1),
  'total_env_frames': integer(1, 10**15),
  'target_return': optional(number()),
  'num_eval_envs': integer(0, COUNT),
  'unroll_length': integer(1, STEPS),
  'batch_size': integer(1, COUNT),
  'deterministic': FLAG,
  'env.id': TEXT,
  'env.factory': TEXT,
  'env.factory_kwargs': SECTION,
  'env.num_envs': integer(0, COUNT),
  'env.processes': integer(0, 1024),
  'env.batch_size': integer(0, COUNT),
  # With more than the system allows, EnvPool ends the process.
  'env.num_threads': integer(0, 1024),
  'env.thread_affinity_offset': _PROCESSOR,
  'env.max_episode_steps': optional(integer(1, LARGE)),
  'env.frame_skip': optional(integer(1, 10**4)),
  'env.stack_num': optional(integer(1, 1000)),
  'env.noop_max': optional(integer(1, COUNT)),
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
  'network.hidden_sizes': each(integer(1, UNITS)),
  'network.activation': one_of('relu', 'tanh'),
  'network.layer_norm': FLAG,
  'network.dense_size': integer(0, UNITS),
  'network.width': integer(1, 1000),
  'network.resnet_channels': each(integer(1, 10**4)),
  'network.frame_stack': integer(1, 1000),
  'network.tpu_chunk': integer(0, COUNT),
  'network.image_layout': one_of('auto', 'channels_first', 'channels_last'),
  'network.categories': one_of('auto', 'on', 'off'),
  'network.contrast': number(0),
  'network.lstm_size': integer(0, UNITS),
  'network.use_previous_action': FLAG,
  'network.previous_reward_clip': number(0),
  'network.compute_dtype': one_of('float32', 'bfloat16'),
  'replay.backend': one_of('embedded', 'reverb', 'auto'),
  'replay.address': TEXT,
  'replay.patience': _SECONDS,
  'replay.sampler': one_of('fifo', 'uniform', 'prioritized'),
  'replay.max_size': optional(integer(1, LARGE)),
  'replay.max_times_sampled': integer(0, LARGE),
  'replay.samples_per_insert': number(0),
  'replay.tolerance': number(0),
  'replay.min_size': integer(1, LARGE),
  'replay.priority_exponent': number(0),
  'replay.importance_exponent': number(0, 1),
  'demonstrations.path': TEXT,
  'demonstrations.fraction': number(0, below=1),
  'demonstrations.max_size': optional(integer(1, LARGE)),
  'topology.inference_to_training': TEXT,
  'topology.streams_per_device': integer(1, 1024),
  'topology.max_devices': integer(0, COUNT),
  'topology.inference_affinity_offset': _PROCESSOR,
  'actors.max_envs': integer(0, COUNT),
  'actors.local_inference': FLAG,
  'actors.addresses': each(TEXT),
  'actors.batch_size': integer(0, COUNT),
  'actors.min_batch_size': integer(1, COUNT),
  'actors.batch_timeout_ms': _SECONDS,
  'actors.timeout': number(0.01, 10**9),
  'actors.tls_certificate': TEXT,
  'actors.tls_key': TEXT,
  'actors.token_file': TEXT,
  'actors.insecure': FLAG,
  'learner.micro_batches': integer(1, COUNT),
  'learner.prefetch': integer(1, 1000),
  'learner.publish_period': integer(1, LARGE),
  'learner.max_lag': optional(integer(0, LARGE)),
  'hosts.timeout': number(1, 10**9),
  'hosts.check_period': integer(1, LARGE),
  'asynchronous.workers': integer(1, 1024),
  'asynchronous.model_workers': integer(0, 1023),
  'asynchronous.share': one_of('hogwild', 'lock', 'sync', 'server'),
  'asynchronous.shared_statistics': FLAG,
  'asynchronous.max_staleness': integer(0, LARGE),
  'asynchronous.outlier_deviations': number(0),
  'asynchronous.shards': integer(1, 1024),
  'asynchronous.addresses': each(TEXT),
  'asynchronous.snapshot_seconds': number(0.01, 10**9),
  'asynchronous.patience': number(1, 10**9),
  'checkpoint.every_seconds': _SECONDS,
  'checkpoint.keep': integer(1, LARGE),
  'checkpoint.replay': FLAG,
  # Hours; about a century.
  'checkpoint.keep_every_hours': number(0, 10**6),
  'log.every_seconds': number(0.01, 10**9),
  'log.writers': _WRITERS,
}

# The same for a configuration that another machine may have written.
SAVED = RANGES | dict.fromkeys(
  ('env.thread_affinity_offset', 'topology.inference_affinity_offset'),
  integer(-1, COUNT),
)
