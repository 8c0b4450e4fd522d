"""The configuration keys of the store of unrolls."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  LARGE,
  SECONDS,
  TEXT,
  integer,
  number,
  one_of,
  optional,
)

KEYS: Table = {
  'replay': Section('The store of unrolls for training.'),
  'replay.backend': Key(
    'auto',
    one_of('embedded', 'reverb', 'device', 'auto'),
    "'reverb' is a server process, which the run starts and monitors. "
    "'embedded' is in the learner's process. 'device' is a queue on the "
    'devices, for environments in JAX. '
    "'auto' is 'device' if possible; otherwise 'embedded' for a queue "
    "(sampler 'fifo') and for single transitions (`unroll_length` 1) that "
    'only this process inserts; otherwise Reverb, if available.',
  ),
  'replay.address': Key(
    '', TEXT, 'Address host:port of a running seedrl reverb_server.'
  ),
  'replay.patience': Key(
    60.0, SECONDS, 'Seconds to reconnect after losing the server.'
  ),
  'replay.sampler': Key(
    'fifo',
    one_of('fifo', 'uniform', 'prioritized'),
    "'fifo' is a queue; the others are a replay.",
  ),
  'replay.max_size': Key(
    None,
    optional(integer(1, LARGE)),
    'Maximum number of unrolls. None means two batches, for a queue.',
    int,
  ),
  'replay.max_times_sampled': Key(
    1,
    integer(0, LARGE),
    'Maximum number of times that an unroll is sampled. 0 means no limit.',
  ),
  'replay.samples_per_insert': Key(
    1.0, number(0), 'Sampled unrolls for each inserted one. 0 means no limit.'
  ),
  'replay.tolerance': Key(
    0.1,
    number(0),
    'Tolerance of `samples_per_insert`, as a share of `min_size`.',
  ),
  'replay.min_size': Key(
    1, integer(1, LARGE), 'Unrolls in the store before the first update.'
  ),
  'replay.priority_exponent': Key(
    0.9,
    number(0),
    'Sampling probability is proportional to priority ^ this.',
  ),
  'replay.importance_exponent': Key(
    0.0,
    number(0, 1),
    'Correction of the bias of prioritized sampling by importance weights in '
    'the loss: 1 is full, 0 is none.',
  ),
}
