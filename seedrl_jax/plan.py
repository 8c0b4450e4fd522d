"""What a run consists of, worked out from its configuration.

`builder` opens what is planned here; nothing here opens anything.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import factory as env_factory


@dataclasses.dataclass(frozen=True)
class StreamPlan:
  """The share of a run's environments that one stream has.

  Attributes:
    device: inference core that acts for it.
    num_train: training environments; the stream's first ids.
    global_env_id: int32 `[N]`, run-wide ids of all its environments.
    batch_size: environments per inference call.
  """

  device: jax.Device
  num_train: int
  global_env_id: np.ndarray
  batch_size: int


def make_env_spec(config: Any) -> types.EnvSpec:
  """Describes the environments of a run.

  Raises:
    ValueError: where the configuration asks for what there is not.
  """
  spec = env_factory.make_spec(config.env)
  return types.EnvSpec(
    env_id=spec.name,
    observation=spec.observation,
    num_actions=spec.num_actions,
    action_repeat=spec.action_repeat,
    num_envs=config.env.num_envs,
    num_eval_envs=config.num_eval_envs,
  )


def plan_streams(
  config: Any, inference: tuple[jax.Device, ...]
) -> list[StreamPlan]:
  """Divides the environments over inference streams, as evenly as can be.

  Raises:
    ValueError: where there are fewer environments than streams, or more in a
      batch than in a stream.
  """
  per_device = 1 if config.deterministic else config.topology.streams_per_device
  devices = inference[:1] if config.deterministic else inference
  count = per_device * len(devices)
  num_envs = config.env.num_envs
  if count > num_envs:
    raise ValueError(
      f'--config.env.num_envs={num_envs} cannot feed {count} inference '
      'streams; raise it or lower --config.topology.streams_per_device.'
    )
  train = np.array_split(np.arange(num_envs), count)
  # The streams that got fewer training environments take evaluation first.
  evaluation = np.array_split(
    num_envs + np.arange(config.num_eval_envs), count
  )[::-1]
  plans = []
  for i in range(count):
    ids = np.concatenate([train[i], evaluation[i]]).astype(np.int32)
    plans.append(
      StreamPlan(
        device=devices[i // per_device],
        num_train=len(train[i]),
        global_env_id=ids,
        batch_size=_batch_size(config, len(ids)),
      )
    )
  return plans


def _batch_size(config: Any, num_envs: int) -> int:
  wanted = config.env.batch_size
  if config.deterministic:
    return num_envs
  if not 0 <= wanted <= num_envs:
    raise ValueError(
      f'--config.env.batch_size={wanted}: a stream has {num_envs} environments '
      '(evaluation included); give fewer, or 0 for half of them.'
    )
  return wanted or (num_envs + 1) // 2


def check_batch(config: Any, num_training: int) -> int:
  """Returns the unrolls of a batch that each training device gets.

  Raises:
    ValueError: where the batch does not divide.
  """
  pieces = num_training * config.learner.micro_batches
  if config.batch_size % pieces:
    raise ValueError(
      f'--config.batch_size={config.batch_size} must be a multiple of '
      f'{pieces}: {num_training} training devices x '
      f'--config.learner.micro_batches={config.learner.micro_batches}.'
    )
  return config.batch_size // num_training


def block_width(
  config: Any, batch_width: int, plans: Sequence[StreamPlan]
) -> int:
  """Returns how many unrolls are assembled side by side.

  Args:
    config: the run's configuration.
    batch_width: unrolls of a batch for one training device.
    plans: of all streams.
  """
  if config.replay.sampler == 'fifo':
    # The learner gets the very blocks that were filled.
    return batch_width
  if config.deterministic:
    # In lock step nobody samples between the blocks that one step completes:
    # the ratio of samples to inserts would let only the first of them in.
    return plans[0].num_train
  # A block goes to the store when it is full: one that takes every environment
  # at most once keeps no unroll from the learner until the next are complete.
  return min(batch_width, *(plan.num_train for plan in plans))


def replay_config(config: Any) -> Any:
  """Returns the configuration that the store gets.

  In lock step, one step may complete an unroll of every environment. A queue
  must take them all, as nobody samples meanwhile.
  """
  if not config.deterministic or config.replay.sampler != 'fifo':
    return config
  config = config.copy_and_resolve_references()
  config.replay.max_size = max(
    config.replay.max_size or 0, config.env.num_envs + 2 * config.batch_size
  )
  return config


def unroll_spec(
  env_spec: types.EnvSpec,
  num_transitions: int,
  agent_output: types.Nest,
  core: types.Nest,
) -> types.Unroll:
  """Returns `ArraySpec`s of one unroll of T transitions, as it is stored."""

  def step(spec: types.ArraySpec) -> types.ArraySpec:
    return types.ArraySpec((num_transitions + 1, *spec.shape), spec.dtype)

  def scalar(dtype: Any) -> types.ArraySpec:
    return types.ArraySpec((num_transitions + 1,), np.dtype(dtype))

  is_spec = functools.partial(_isinstance, types.ArraySpec)
  return types.Unroll(
    steps=types.Steps(
      observation=jax.tree.map(step, env_spec.observation, is_leaf=is_spec),
      reward=scalar(np.float32),
      discount=scalar(np.float32),
      step_type=scalar(np.uint8),
      previous_action=scalar(np.int32),
      agent_output=jax.tree.map(step, agent_output, is_leaf=is_spec),
      parameter_version=scalar(np.int32),
    ),
    initial_core=core,
    env_id=types.ArraySpec((), np.dtype(np.int32)),
  )


def blank_batch(spec: types.Unroll, width: int) -> types.Batch:
  """Returns a batch of zeros for one training device, to compile with."""
  is_spec = functools.partial(_isinstance, types.ArraySpec)

  def steps(s: types.ArraySpec) -> np.ndarray:
    return np.zeros((s.shape[0], width, *s.shape[1:]), s.dtype)

  def rows(s: types.ArraySpec) -> np.ndarray:
    return np.zeros((width, *s.shape), s.dtype)

  return types.Batch(
    types.Unroll(
      jax.tree.map(steps, spec.steps, is_leaf=is_spec),
      jax.tree.map(rows, spec.initial_core, is_leaf=is_spec),
      rows(spec.env_id),
    ),
    weight=np.ones(width, np.float32),
  )


def _isinstance(cls: type, x: Any) -> bool:
  return isinstance(x, cls)
