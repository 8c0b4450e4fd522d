"""A table's rules as a Reverb server takes them, and whether one has them.

Called by the store and by `launch/reverb_server.py`. A queue's item is a block
of unrolls that finished together, so the server counts blocks there; an item
of every other table is one unroll.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from seedrl_jax.replay import base, rate_limiter
from seedrl_jax.replay.reverb.client import errors
from seedrl_jax.replay.reverb.proto import reverb_pb2
from seedrl_jax.replay.table_configs import table_configs

# JSON has no infinity, and Reverb means this by none.
_UNBOUNDED = sys.float_info.max


def server_rules(
  config: base.TableConfig, block_width: int, batch_size: int
) -> dict[str, Any]:
  """Returns a table as `main.py` takes it.

  The store's `ledger.py` lets whole blocks and batches pass by the same rules
  before anything is sent; the server's are what several processes share.

  Args:
    config: the table's rules.
    block_width: unrolls in a block that writers fill.
    batch_size: of the largest batch that will be drawn; the ratio's buffer
      must hold one.
  """
  rules: dict[str, Any] = {
    'name': config.name,
    'sampler': config.sampler,
    'remover': 'fifo',
    'priority_exponent': config.priority_exponent,
    'max_times_sampled': config.max_times_sampled,
    'samples_per_insert': config.samples_per_insert,
  }
  if config.sampler == 'fifo':
    blocks = max(1, config.max_size // block_width)
    return rules | {
      'max_size': blocks,
      'min_size_to_sample': 1,
      'min_diff': 0.0,
      'max_diff': float(blocks),
    }
  rules |= {
    'max_size': config.max_size,
    'min_size_to_sample': config.min_size,
    'min_diff': -_UNBOUNDED,
    'max_diff': _UNBOUNDED,
  }
  if config.samples_per_insert:
    # As if blocks were whole batches, and none is wider: who starts a server
    # by hand does not know how a run divides its environments.
    limiter = rate_limiter.RateLimiter(config, batch_size)
    limiter.widen(batch_size)
    centre = config.min_size * config.samples_per_insert
    rules['min_diff'] = centre - limiter.buffer
    rules['max_diff'] = centre + limiter.buffer
  else:
    # A ratio of 0 would let Reverb take nothing.
    rules['samples_per_insert'] = 1.0
  return rules


def tables_from_config(config: Any) -> list[dict[str, Any]]:
  """Returns the tables of a run, for a server that is started by hand.

  A queue there holds blocks of a whole batch; a run whose blocks are narrower
  keeps to its own limit.

  Args:
    config: the run's configuration.

  Raises:
    ValueError: naming the flag and what would do.
  """
  width = config.batch_size
  return [server_rules(c, width, width) for c in table_configs(config)]


def check_fits(
  address: str,
  served: Mapping[str, reverb_pb2.TableInfo],
  wanted: Sequence[Mapping[str, Any]],
) -> None:
  """Checks that a server which runs already has the run's tables.

  Args:
    address: of the server.
    served: its tables by name.
    wanted: as `server_rules` gives them. Of a queue's size nothing is asked:
      the run keeps to its own.

  Raises:
    Refused: in one sentence that says what differs.
  """
  for rules in wanted:
    name = rules['name']
    if name not in served:
      raise errors.UnknownTable(
        f'--config.replay.address={address}: the server has no table {name}, '
        f'only {sorted(served)}; start it with this configuration '
        '(launch/reverb_server.py --config=…).'
      )
    differences = [
      f'{key} is {there} there and {here} here'
      for key, there, here in _compare(served[name], rules)
      if there != here
    ]
    if differences:
      raise errors.Refused(
        f'--config.replay.address={address}: table {name} does not fit this '
        f'run ({"; ".join(differences)}); start the server with this '
        'configuration, or change the configuration.'
      )


def _compare(
  info: reverb_pb2.TableInfo, rules: Mapping[str, Any]
) -> list[tuple[str, Any, Any]]:
  """Returns (rule, the server's, ours) for every rule that must be equal."""
  kind, exponent = _selector(info.sampler_options)
  remover, _ = _selector(info.remover_options)
  result: list[tuple[str, Any, Any]] = [
    ('sampler', kind, rules['sampler']),
    ('remover', remover, rules['remover']),
    ('max_times_sampled', info.max_times_sampled, rules['max_times_sampled']),
  ]
  if kind == rules['sampler'] == 'prioritized':
    result.append(('priority_exponent', exponent, rules['priority_exponent']))
  if rules['sampler'] == 'fifo':
    return result
  limiter = info.rate_limiter_info
  result.append(('max_size', info.max_size, rules['max_size']))
  for key in ('samples_per_insert', 'min_size_to_sample'):
    result.append((key, getattr(limiter, key), rules[key]))
  for key in ('min_diff', 'max_diff'):
    result.append((key, getattr(limiter, key), rules[key]))
  return result


def _selector(options: reverb_pb2.KeyDistributionOptions) -> tuple[str, float]:
  kind = options.WhichOneof('distribution') or 'unknown'
  if kind == 'heap':
    return ('heap_min' if options.heap.min_heap else 'heap_max'), 0.0
  return kind, options.prioritized.priority_exponent
