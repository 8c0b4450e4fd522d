"""Types of `base.py`, made by docs/write_configuration.py."""

from collections.abc import Callable
from typing import Any

import ml_collections

from seedrl_jax.runtime import keys, settings

KEYS: keys.Table
ALLOWED: dict[str, settings.Allowed]
SAVED: dict[str, settings.Allowed]

def get_config(
  set_agent: Callable[[ml_collections.ConfigDict], None] = ...,
) -> Config: ...
def set_atari_protocol(config: ml_collections.ConfigDict) -> None: ...
def set_concurrent_task(config: ml_collections.ConfigDict) -> None: ...

class _Env(ml_collections.ConfigDict):
  id: str
  factory: str
  factory_kwargs: ml_collections.ConfigDict
  tasks: tuple[Any, ...]
  task_weights: tuple[Any, ...]
  num_envs: int
  batch_size: int
  num_threads: int
  thread_affinity_offset: int
  processes: int
  max_episode_steps: int | None
  frame_skip: int | None
  stack_num: int | None
  noop_max: int | None
  episodic_life: bool | None
  zero_discount_on_life_loss: bool | None
  reward_clip: bool | None
  use_fire_reset: bool | None
  full_action_space: bool | None
  repeat_action_probability: float | None
  options: ml_collections.ConfigDict
  drop_observations: tuple[Any, ...]
  action_mask: str

class _Network(ml_collections.ConfigDict):
  torso: str
  hidden_sizes: tuple[Any, ...]
  activation: str
  layer_norm: bool
  dense_size: int
  width: int
  resnet_channels: tuple[Any, ...]
  frame_stack: int
  tpu_chunk: int
  image_layout: str
  categories: str
  use_action_mask: bool
  use_task: bool
  normalize_pixels: bool
  lstm_size: int
  use_previous_action: bool
  previous_reward_clip: float
  compute_dtype: str

class _Replay(ml_collections.ConfigDict):
  backend: str
  address: str
  patience: float
  sampler: str
  max_size: int | None
  max_times_sampled: int
  samples_per_insert: float
  tolerance: float
  min_size: int
  priority_exponent: float
  importance_exponent: float

class _Demonstrations(ml_collections.ConfigDict):
  path: str
  fraction: float
  max_size: int | None

class _Topology(ml_collections.ConfigDict):
  inference_to_training: str
  streams_per_device: int
  max_devices: int
  inference_affinity_offset: int

class _Learner(ml_collections.ConfigDict):
  micro_batches: int
  prefetch: int
  publish_period: int
  max_lag: int | None

class _Actors(ml_collections.ConfigDict):
  max_envs: int
  local_inference: bool
  addresses: tuple[Any, ...]
  batch_size: int
  min_batch_size: int
  batch_timeout_ms: float
  timeout: float
  tls_certificate: str
  tls_key: str
  token_file: str
  insecure: bool

class _Hosts(ml_collections.ConfigDict):
  timeout: float
  check_period: int

class _Asynchronous(ml_collections.ConfigDict):
  workers: int
  model_workers: int
  share: str
  shared_statistics: bool
  max_staleness: int
  outlier_deviations: float
  shards: int
  patience: float

class _Checkpoint(ml_collections.ConfigDict):
  every_seconds: float
  keep: int
  keep_best: bool
  replay: bool
  keep_every_hours: float

class _Log(ml_collections.ConfigDict):
  every_seconds: float
  writers: tuple[Any, ...]

class Config(ml_collections.ConfigDict):
  agent: str
  seed: int
  total_env_frames: int
  target_return: float | None
  num_eval_envs: int
  unroll_length: int
  batch_size: int
  deterministic: bool
  env: _Env
  network: _Network
  replay: _Replay
  demonstrations: _Demonstrations
  topology: _Topology
  learner: _Learner
  actors: _Actors
  hosts: _Hosts
  asynchronous: _Asynchronous
  checkpoint: _Checkpoint
  log: _Log
