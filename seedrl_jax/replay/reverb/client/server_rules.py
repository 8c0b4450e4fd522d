"""A table's rules in the server's terms, and their comparison.

A queue's item is a block of unrolls; a replay's item is one unroll.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.proto import reverb_pb2

# JSON has no infinity; Reverb uses this number for it.
_UNBOUNDED = sys.float_info.max
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
  if isinstance(config, table_configs.ReplayConfig):
    return _replay_rules(config, batch_size)
  blocks, _ = queue_blocks(config, block_width)
  return {
    'name': config.name,
    'sampler': 'fifo',
    'priority_exponent': 0.0,
    'max_times_sampled': 1,
    'samples_per_insert': 1.0,
    'max_size': blocks,
    'min_size_to_sample': 1,
    'min_diff': 0.0,
    'max_diff': float(blocks),
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


def _replay_rules(
  config: table_configs.ReplayConfig, batch_size: int
) -> dict[str, Any]:
  rules: dict[str, Any] = {
    'name': config.name,
    'sampler': config.sampler,
    'priority_exponent': config.priority_exponent,
    'max_times_sampled': config.max_times_sampled,
    'max_size': config.max_size,
    'min_size_to_sample': config.min_size,
  }
  if not config.samples_per_insert:
    # With a ratio of 0, Reverb would accept nothing.
    free = {'min_diff': -_UNBOUNDED, 'max_diff': _UNBOUNDED}
    return rules | {'samples_per_insert': 1.0} | free
  # As if blocks were whole batches, the widest there are: a server started by
  # hand does not know the block width of a run.
  limiter = table_configs.RateLimiter(config, batch_size)
  limiter.widen(batch_size)
  low, high = limiter.bounds()
  ratio = config.samples_per_insert
  return rules | {
    'samples_per_insert': ratio,
    'min_diff': low,
    'max_diff': high,
  }


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
    differences = [
      f'{key} is {there} there and {here} here'
      for key, there, here in _compare(served[name], rules)
      if there != here
    ]
    if differences:
      raise errors.RequestRefused(
        f'--config.replay.address={address}: table {name} does not fit this '
        f'run ({"; ".join(differences)}); start the server with this '
        'configuration, or change the configuration.'
      )


def _compare(
  info: reverb_pb2.TableInfo, rules: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
  """Returns (rule, the server's, ours) for every rule that must be equal."""
  options, limiter = info.sampler_options, info.rate_limiter_info
  served = {
    'sampler': options.WhichOneof('distribution') or 'unknown',
    'remover': info.remover_options.WhichOneof('distribution') or 'unknown',
    'max_times_sampled': info.max_times_sampled,
  }
  if served['sampler'] == rules['sampler'] == 'prioritized':
    served['priority_exponent'] = options.prioritized.priority_exponent
  if rules['sampler'] != 'fifo':
    served['max_size'] = info.max_size
    for key in _LIMITS:
      served[key] = getattr(limiter, key)
  rules = {'remover': 'fifo', **rules}
  return [(key, value, rules[key]) for key, value in served.items()]
