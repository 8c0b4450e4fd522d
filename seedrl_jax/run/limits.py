"""Checks what a run's parts ask of each other, such as a policy lag."""

import math
from collections.abc import Sequence

import ml_collections

from seedrl_jax.run.layout import StreamShare


def stays_on_device(
  config: ml_collections.ConfigDict, is_in_jax: bool, overlap: int
) -> bool:
  """Returns whether unrolls stay on the devices, by `replay.backend`.

  Args:
    is_in_jax: whether the local environments are.
    overlap: steps that consecutive unrolls share.

  Raises ValueError if they must, but cannot.
  """
  replay, obstacle = config.replay, ''
  if not is_in_jax:
    obstacle = f'{config.env.id} is not in JAX'
  elif replay.sampler != 'fifo':
    obstacle = 'a replay is on the host; only a queue (replay.sampler=fifo) can'
  elif overlap > 1:
    obstacle = f"the agent's unrolls overlap by {overlap} steps, not by 1"
  elif config.actors.local_inference:
    obstacle = 'actors of local inference write to Reverb'
  elif config.actors.max_envs and config.learner.max_lag is not None:
    obstacle = (
      '--config.learner.max_lag counts the unrolls of a batch, which remote '
      'actors (--config.actors.max_envs) and local environments would share'
    )
  elif replay.address:
    obstacle = f'--config.replay.address={replay.address} is on the host'
  if replay.backend == 'device' and obstacle:
    raise ValueError(f'--config.replay.backend=device: {obstacle}; take auto.')
  return replay.backend in ('device', 'auto') and not obstacle


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
