"""Checks a configuration, and works out a run's components.

Opens nothing. Each agent checks its own keys together with
the environment.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import ml_collections
import numpy as np

from seedrl_jax.agents import base as agents
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import factory
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.runtime import settings

# Environments with cheap steps take turns only in halves of at least this size.
_LEAST_HALF = 128


def check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError if a value is wrong, which names the flag and the fix.

  If the agent declares no keys, its sections may have any.
  """
  agent_keys = agents.allowed(config)
  settings.check(
    config,
    base_config.ALLOWED | dict(agent_keys or {}),
    complete=bool(agent_keys),
  )
  if config.checkpoint.keep_best and not config.num_eval_envs:
    raise ValueError(
      '--config.checkpoint.keep_best=True: needs evaluation; give '
      '--config.num_eval_envs at least 1.'
    )


@dataclasses.dataclass(frozen=True)
class StreamShare:
  """One stream's share of a run's environments.

  Attributes:
    device: inference core that acts for it.
    num_train: training environments; the stream's first ids.
    global_env_id: int32 `[N]`, run-wide ids of all its environments.
    batch_size: environments per inference call, at most.
    is_remote: whether actors bring the environments, up to `N`.
  """

  device: jax.Device
  num_train: int
  global_env_id: np.ndarray
  batch_size: int
  is_remote: bool = False


def local_config(
  config: ml_collections.ConfigDict, placement: placement_lib.Placement
) -> ml_collections.ConfigDict:
  """Returns the configuration of one process's share of a run.

  The processes may share the batch, process 0 evaluates, and seeds differ. All
  other counts of environments or unrolls are per process. Raises ValueError if
  the batch cannot be shared equally.
  """
  if placement.count == 1:
    return config
  divisor = placement.count if placement.shares_batch else 1
  if config.batch_size % divisor:
    raise ValueError(
      f'--config.batch_size={config.batch_size} must be a multiple of the '
      f'{placement.count} hosts.'
    )
  config = config.copy_and_resolve_references()
  config.batch_size //= divisor
  if placement.index:
    config.num_eval_envs = 0
    seeds = np.random.SeedSequence([config.seed, placement.index])
    config.seed = int(seeds.generate_state(1)[0] >> 1)
  return config


def plan_streams(
  config: ml_collections.ConfigDict,
  inference: tuple[jax.Device, ...],
  placement: placement_lib.Placement = placement_lib.SINGLE,
  lock_step: bool = False,
) -> list[StreamShare]:
  """Divides a process's environments over streams as evenly as possible.

  Global ids are, process by process, first those of its local training
  environments, then of its remote ones; the last are those for evaluation, all
  of process 0. Raises ValueError if there are fewer environments than streams,
  or more in a batch than in a stream, or none to train on.
  """
  num_remote = config.actors.max_envs
  if not placement.has_environments:
    return []
  if not config.env.num_envs + num_remote:
    raise ValueError(
      '--config.env.num_envs=0: give at least 1, or let actors bring some with '
      '--config.actors.max_envs.'
    )
  if num_remote and lock_step:
    raise ValueError(
      f'--config.actors.max_envs={num_remote}: remote actors cannot take turns '
      'with the learner, as --config.deterministic and asynchronous workers '
      'without Reverb do; give 0.'
    )
  _check_tasks(config)
  shares = _plan_local_streams(config, inference, placement, lock_step)
  if num_remote:
    shares += _plan_remote_streams(config, inference, placement)
  return shares


def _check_tasks(config: ml_collections.ConfigDict) -> None:
  names = factory.task_names(config.env)
  num_train, num_eval = config.env.num_envs, config.num_eval_envs
  numbers = None
  if num_train:
    ids = np.arange(num_train)
    numbers = factory.task_numbers(config.env, ids, num_train)
  if numbers is not None and len(np.unique(numbers)) < len(names):
    raise ValueError(
      f'--config.env.num_envs={num_train} are too few for {len(names)} tasks: '
      'each needs one; raise it.'
    )
  if 0 < num_eval < len(names):
    raise ValueError(
      f'--config.num_eval_envs={num_eval}: give at least {len(names)}, one for '
      'each task, or 0.'
    )


def _plan_local_streams(
  config: ml_collections.ConfigDict,
  inference: tuple[jax.Device, ...],
  placement: placement_lib.Placement,
  lock_step: bool,
) -> list[StreamShare]:
  per_device, devices = config.topology.streams_per_device, inference
  if lock_step:
    per_device, devices = 1, inference[:1]
  streams = [device for device in devices for _ in range(per_device)]
  num_envs = config.env.num_envs
  if not num_envs:
    # Actors have all training environments.
    streams = streams[: min(1, config.num_eval_envs)]
  elif len(streams) > num_envs:
    raise ValueError(
      f'--config.env.num_envs={num_envs} cannot feed {len(streams)} inference '
      'streams; raise it or lower --config.topology.streams_per_device.'
    )
  if not streams:
    return []
  num_train = num_envs + config.actors.max_envs
  first_id = placement.index * num_train
  train = np.array_split(first_id + np.arange(num_envs), len(streams))
  # Streams with fewer training environments get evaluation first.
  first_eval_id = placement.count * num_train
  evaluation = np.array_split(
    first_eval_id + np.arange(config.num_eval_envs), len(streams)
  )[::-1]
  shares = []
  for device, train_ids, eval_ids in zip(
    streams, train, evaluation, strict=True
  ):
    ids = np.concatenate([train_ids, eval_ids]).astype(np.int32)
    size = len(ids) if lock_step else inference_batch_size(config, len(ids))
    shares.append(StreamShare(device, len(train_ids), ids, size))
  return shares


def _plan_remote_streams(
  config: ml_collections.ConfigDict,
  inference: tuple[jax.Device, ...],
  placement: placement_lib.Placement,
) -> list[StreamShare]:
  num_local, num_remote = config.env.num_envs, config.actors.max_envs
  devices = inference[:num_remote]
  first_id = placement.index * (num_local + num_remote) + num_local
  ids = first_id + np.arange(num_remote, dtype=np.int32)
  shares = []
  for device, part in zip(
    devices, np.array_split(ids, len(devices)), strict=True
  ):
    size = config.actors.batch_size or len(part)
    shares.append(StreamShare(device, len(part), part, size, is_remote=True))
  return shares


def inference_batch_size(
  config: ml_collections.ConfigDict, num_envs: int
) -> int:
  """Returns how many of a local stream's environments an inference call has."""
  batch_size = config.env.batch_size
  if not 0 <= batch_size <= num_envs:
    raise ValueError(
      f'--config.env.batch_size={batch_size}: a stream has {num_envs} '
      'environments (evaluation included); give fewer, or 0 for the default.'
    )
  if batch_size:
    return batch_size
  # Halves drift apart: one would begin unrolls before the other ends those of
  # the last batch, and so wait for all training.
  in_step = config.learner.max_lag in (0, 1)
  # Two calls with few rows cost more than stepping in between saves.
  is_cheap = num_envs < 2 * _LEAST_HALF and factory.is_cheap(config.env)
  return num_envs if in_step or is_cheap else (num_envs + 1) // 2


def check_batch(config: ml_collections.ConfigDict, num_training: int) -> int:
  """Returns each training device's unrolls of a batch.

  `num_training` counts all hosts' devices. Raises `ValueError` if the batch
  does not divide.
  """
  pieces = num_training * config.learner.micro_batches
  if config.batch_size % pieces:
    raise ValueError(
      f'--config.batch_size={config.batch_size} must be a multiple of '
      f'{pieces}: {num_training} training devices x '
      f'--config.learner.micro_batches={config.learner.micro_batches}.'
    )
  return config.batch_size // num_training


def stays_on_device(
  config: ml_collections.ConfigDict, is_in_jax: bool, overlap: int
) -> bool:
  """Returns whether unrolls stay on the devices, by `replay.backend`.

  Args:
    is_in_jax: whether the local environments are.
    overlap: steps that consecutive unrolls share.

  Raises ValueError if they must, but cannot.
  """
  replay, actors = config.replay, config.actors
  # A maximum lag counts the unrolls of a batch, of which actors bring some.
  shares_batches = actors.max_envs and config.learner.max_lag is not None
  is_queue = replay.sampler == 'fifo' and overlap <= 1 and not replay.address
  needs_host = actors.local_inference or shares_batches
  is_possible = is_in_jax and is_queue and not needs_host
  if replay.backend == 'device' and not is_possible:
    raise ValueError(
      '--config.replay.backend=device: needs environments in JAX and a queue '
      '(--config.replay.sampler=fifo) whose unrolls overlap by 1 step, without '
      '--config.replay.address, --config.actors.local_inference, and '
      '--config.actors.max_envs beside --config.learner.max_lag; take auto.'
    )
  return replay.backend in ('device', 'auto') and is_possible


def check_blocks(shares: Sequence[StreamShare], block_width: int) -> None:
  """Raises ValueError unless JAX environments' unrolls can become blocks."""
  for share in shares:
    if share.is_remote or share.num_train % block_width == 0:
      continue
    raise ValueError(
      f'--config.env.num_envs: a stream has {share.num_train} environments in '
      f'JAX, which act together and give blocks of {block_width} unrolls, one '
      'for each training device; make it a multiple of that, or make '
      '--config.batch_size smaller.'
    )


def check_max_lag(
  config: ml_collections.ConfigDict,
  shares: Sequence[StreamShare],
  block_width: int,
) -> None:
  """Checks that a host's unrolls can be as recent as `learner.max_lag` asks.

  Raises ValueError if it always had to drop some, or has no queue.
  """
  most = config.learner.max_lag
  if most is None:
    return
  flag = f'--config.learner.max_lag={most}: '
  if config.replay.sampler != 'fifo':
    raise ValueError(
      f'{flag}a replay holds old steps; only a queue (replay.sampler=fifo) has '
      'a bound.'
    )
  if config.learner.publish_period > 1:
    raise ValueError(
      f'{flag}needs the parameters of each batch; leave '
      '--config.learner.publish_period at 1.'
    )
  # Each stream has an unroll of each of its environments in blocks of its own.
  counts = [share.num_train for share in shares]
  unrolls = sum(
    -(-count // block_width) * block_width if count > block_width else count
    for count in counts
  )
  num_envs, size = sum(counts), config.batch_size
  # The first of them may be as far as this into a batch.
  into = size - math.gcd(num_envs, size)
  least = (into + unrolls - 1) // size
  if least > most:
    raise ValueError(
      f'{flag}the environments begin the unrolls of {least + 1} batches at '
      f'once; give at least {least}, or make --config.batch_size a multiple of '
      f'{num_envs}.'
    )
