"""Makes the store that a run's configuration asks for.

Called by `system`. The errors are for whoever typed the flags.
"""

from typing import Any

from absl import logging

from seedrl_jax import types
from seedrl_jax.replay import base, embedded

# The one table of a run.
TABLE = 'unrolls'

BACKENDS = ('embedded', 'reverb', 'auto')


def table_config(config: Any) -> base.TableConfig:
  """Returns the rules of the run's table.

  Args:
    config: the run's configuration (`configs/base.py`): `batch_size` and
      `replay`, whose `max_size` of None means two batches for a queue.

  Raises:
    ValueError: naming the flag and what would do.
  """
  replay = config.replay
  max_size = replay.max_size
  if max_size is None:
    if replay.sampler != 'fifo':
      raise ValueError(
        f'--config.replay.max_size: a {replay.sampler} table needs it, in '
        'unrolls (R2D2 has 100000).'
      )
    max_size = 2 * config.batch_size
  if replay.sampler == 'fifo' and max_size < config.batch_size:
    raise ValueError(
      f'--config.replay.max_size={max_size}: less than one batch '
      f'(--config.batch_size={config.batch_size}), which would never fill; '
      f'give {2 * config.batch_size} or leave it out.'
    )
  return base.TableConfig(
    name=TABLE,
    sampler=replay.sampler,
    max_size=max_size,
    max_times_sampled=replay.max_times_sampled,
    samples_per_insert=replay.samples_per_insert,
    tolerance=replay.tolerance,
    min_size=replay.min_size,
    priority_exponent=replay.priority_exponent,
  )


def make_store(
  config: Any, unroll_spec: types.Unroll, block_width: int
) -> base.TrajectoryStore:
  """Makes the store of a run, with one table named `TABLE`.

  Args:
    config: the run's configuration.
    unroll_spec: `types.Unroll` of `types.ArraySpec` for one unroll: leaves
      under `steps` are `[T + 1, ...]`, the others `[...]`.
    block_width: unrolls in a block that writers fill; in a queue a batch is a
      whole number of them.

  Raises:
    MemoryError, ValueError: naming the flag and what would do.
  """
  rules = table_config(config)
  batch_size = config.batch_size
  if rules.sampler == 'fifo' and batch_size % block_width:
    raise ValueError(
      f'--config.batch_size={batch_size}: must be a multiple of '
      f'{block_width}, the unrolls that are assembled side by side.'
    )
  backend = config.replay.backend
  if backend not in BACKENDS:
    raise ValueError(
      f'--config.replay.backend={backend}: choose one of {BACKENDS}.'
    )
  if backend == 'reverb':
    raise ValueError(
      '--config.replay.backend=reverb: this version has no Reverb client yet; '
      'use embedded.'
    )
  if backend == 'auto':
    logging.info('Replay: embedded, as this version has no Reverb client yet.')
  return embedded.EmbeddedStore(
    [rules], unroll_spec, block_width, seed=config.seed
  )
