"""The table of a run, from its configuration.

Called by `factory.py`, and by whatever starts a Reverb server for a run. The
errors are for whoever typed the flags.
"""

from typing import Any

from seedrl_jax.replay import base

# The one table of a run.
TABLE = 'unrolls'


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
