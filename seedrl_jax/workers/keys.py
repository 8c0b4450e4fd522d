"""The configuration keys of asynchronous workers."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import FLAG, LARGE, integer, number, one_of

KEYS: Table = {
  'asynchronous': Section(
    'Workers that train the same parameters (seedrl train_async). '
    'Environments, `batch_size` and replay sizes are per worker.'
  ),
  'asynchronous.workers': Key(
    2, integer(1, 1024), 'Number of processes, each on one processor or device.'
  ),
  'asynchronous.model_workers': Key(
    0,
    integer(0, 1023),
    "Number of these workers that have no environments, but train Dyna-Q's "
    'model, and values on imagined transitions. They sample the replay of '
    "the others, so they need `replay.backend='reverb'`. Their samples do "
    'not count for `replay.samples_per_insert`. Each makes at most as many '
    'updates as an acting worker on average.',
  ),
  'asynchronous.share': Key(
    'hogwild',
    one_of('hogwild', 'lock', 'sync', 'server'),
    "How gradients are applied. 'hogwild': in shared memory, without locks. "
    "'lock': in shared memory, one at a time. 'sync': the mean of one "
    "gradient per worker. 'server': by a parameter server.",
  ),
  'asynchronous.shared_statistics': Key(
    True,
    FLAG,
    "Shares the optimiser's statistics, as in A3C; otherwise each worker has "
    'its own. A parameter server always has one set.',
  ),
  'asynchronous.max_staleness': Key(
    0,
    integer(0, LARGE),
    'Discards gradients of parameters that are more than this many versions '
    'old. 0 discards none.',
  ),
  'asynchronous.outlier_deviations': Key(
    0.0,
    number(0),
    'Discards gradients whose loss is more than this many standard deviations '
    'above its running mean. 0 discards none.',
  ),
  'asynchronous.shards': Key(
    1,
    integer(1, 1024),
    'Processes of the parameter server, each with a slice of the parameters.',
  ),
  'asynchronous.patience': Key(
    60.0,
    number(1, 10**9),
    'Seconds without processor time after which a worker or shard has hung, '
    "which ends the run; with 'sync' also seconds to wait for a gradient.",
  ),
}
