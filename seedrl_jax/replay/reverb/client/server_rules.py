"""A table's rules in the server's terms, and their comparison.

A queue's item is a block of unrolls; a replay's item is one unroll.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.proto import reverb_pb2

# More would not be faster.
_MOST_ON_THE_WAY = 4
_LIMITS = ('samples_per_insert', 'min_size_to_sample', 'min_diff', 'max_diff')


def server_rules(
  config: table_configs.TableConfig, block_width: int, batch_size: int
) -> dict[str, Any]:
  """Returns a table's rules as the server's `main.py` takes them.

  They apply to all processes together, item by item. `batch_size` is of the
  largest batch.
  """
  max_size = config.max_size
  if isinstance(config, table_configs.QueueConfig):
    max_size, _ = queue_blocks(config, block_width)
    low, high = 0.0, float(max_size)
  else:
    # As if blocks were whole batches, the widest there are: a server started by
    # hand does not know the block width of a run.
    limiter = table_configs.RateLimiter(config, batch_size)
    limiter.widen(batch_size)
    low, high = limiter.bounds()
  return {
    'name': config.name,
    'sampler': config.sampler,
    'priority_exponent': config.priority_exponent,
    'max_times_sampled': config.max_times_sampled,
    'max_size': max_size,
    'min_size_to_sample': config.min_size,
    # With a ratio of 0, Reverb would accept nothing.
    'samples_per_insert': config.samples_per_insert or 1.0,
    'min_diff': low,
    'max_diff': high,
  }


def queue_blocks(
  config: table_configs.QueueConfig, block_width: int
) -> tuple[int, int]:
  """Returns the blocks in a queue, and of each writer on their way to it.

  Together they are `max_size` unrolls, but at least one each.
  """
  blocks = config.max_size // block_width
  on_the_way = max(1, min(blocks // 2, _MOST_ON_THE_WAY))
  return max(1, blocks - on_the_way), on_the_way


def check_fits(
  address: str,
  served: Mapping[str, reverb_pb2.TableInfo],
  wanted: Sequence[Mapping[str, Any]],
) -> None:
  """Raises RequestRefused if a running server lacks tables of these rules.

  A queue may be of another size.
  """
  for rules in wanted:
    name = rules['name']
    if name not in served:
      raise errors.RequestRefused(
        f'--config.replay.address={address}: the server has no table {name}, '
        f'only {sorted(served)}; start it with this configuration '
        '(seedrl reverb_server --config=…).'
      )
    here = {**rules, 'remover': 'fifo'}
    differences = [
      f'{key} is {there} there and {here[key]} here'
      for key, there in _served_rules(served[name], rules['sampler']).items()
      if there != here[key]
    ]
    if differences:
      raise errors.RequestRefused(
        f'--config.replay.address={address}: table {name} does not fit this '
        f'run ({"; ".join(differences)}); start the server with this '
        'configuration, or change the configuration.'
      )


def _served_rules(info: reverb_pb2.TableInfo, sampler: str) -> dict[str, Any]:
  """Returns a server's rules that must be those of a table of this sampler."""
  options = info.sampler_options
  rules: dict[str, Any] = {
    'sampler': options.WhichOneof('distribution') or 'unknown',
    'remover': info.remover_options.WhichOneof('distribution') or 'unknown',
    'max_times_sampled': info.max_times_sampled,
  }
  if rules['sampler'] == sampler == 'prioritized':
    rules['priority_exponent'] = options.prioritized.priority_exponent
  if sampler != 'fifo':
    rules['max_size'] = info.max_size
    for key in _LIMITS:
      rules[key] = getattr(info.rate_limiter_info, key)
  return rules
