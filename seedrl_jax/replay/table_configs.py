"""The tables of a run, from its configuration.

Called by `factory.py`, and by whatever starts a Reverb server for a run. The
errors are for whoever typed the flags.
"""

from typing import Any

from seedrl_jax.demonstrations import folder
from seedrl_jax.replay import base

# What inference writes and the learner reads.
TABLE = 'unrolls'


def table_configs(config: Any) -> list[base.TableConfig]:
  """Returns the rules of all tables of a run, the unrolls' first.

  Args:
    config: the run's configuration (`configs/base.py`).

  Raises:
    ValueError: naming the flag and what would do.
  """
  tables = [table_config(config)]
  if config.demonstrations.fraction or config.demonstrations.path:
    tables.append(demonstrations_config(config))
  return tables


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
        'unrolls (as 100000).'
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


def demonstrations_config(config: Any) -> base.TableConfig:
  """Returns the rules of the demonstrations' table.

  Demonstrations are drawn as the run's own unrolls are, as often as anybody
  asks, and stay.

  Args:
    config: the run's configuration: `demonstrations`, whose `max_size` of None
      means as many as its folder holds, and `replay`.

  Raises:
    ValueError: naming the flag and what would do.
  """
  section, replay = config.demonstrations, config.replay
  if not 0 < section.fraction < 1:
    raise ValueError(
      f'--config.demonstrations.fraction={section.fraction}: give a number '
      'above 0 and below 1, as 0.25, where there are demonstrations.'
    )
  if replay.sampler == 'fifo':
    raise ValueError(
      f'--config.demonstrations.fraction={section.fraction}: a fifo queue '
      'cannot be mixed with demonstrations; take --config.replay.sampler='
      'prioritized or uniform.'
    )
  if not section.path and not replay.address:
    raise ValueError(
      f'--config.demonstrations.fraction={section.fraction}: there are none; '
      'give --config.demonstrations.path, a folder of launch/record.py.'
    )
  max_size = section.max_size
  if max_size is None:
    if not section.path:
      raise ValueError(
        '--config.demonstrations.max_size: give it, in sequences, where there '
        'is no --config.demonstrations.path to count them in.'
      )
    max_size = folder.read_manifest(section.path).sequences
  return base.TableConfig(
    name=folder.TABLE,
    sampler=replay.sampler,
    max_size=max_size,
    samples_per_insert=0.0,
    priority_exponent=replay.priority_exponent,
    # Any number of sequences can be inserted.
    block_width=1,
  )
