"""Checkpoints that a Reverb server writes: lists, checks, keeps, rewrites them.

Called by `server.py` and by the store. A checkpoint is a folder of
`tables.tfrecord` (a record for each table), `items.tfrecord`,
`chunks.tfrecord` and, written last, an empty `DONE`. As every item and every
chunk is a record of its own, no size limit of protocol buffers is in the way
(older releases wrote all items of a table in one message, which ends at 2 GB).

What dm-reverb 0.14.0 does, and what is done about it here:

* It keeps only the newest checkpoint and deletes *everything* else from its
  folder. So a server gets a folder of its own, and `keep` moves what it wrote.
* A restored table has all rules of the checkpoint (rate limiter, sizes,
  sampler, remover) and ignores those that the server was started with. So
  `rewrite` makes a checkpoint with the rules of now.
* A restored item that has been sampled as often as it may be never leaves, and
  more items than fit are an error. So `rewrite` leaves both out.
* A checkpoint without `DONE` is passed over in silence, and so are items whose
  chunks were cut off. So `read` refuses the first and `rewrite` the second.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf import message

from seedrl_jax.replay import base
from seedrl_jax.replay.reverb.proto import checkpoint_pb2, reverb_pb2
from seedrl_jax.replay.reverb.server import tfrecord

_TABLES = 'tables.tfrecord'
_ITEMS = 'items.tfrecord'
_CHUNKS = 'chunks.tfrecord'
_DONE = 'DONE'


@dataclasses.dataclass(frozen=True)
class SavedTable:
  """What a checkpoint says of a table; counts are in items.

  Attributes:
    size: items in it.
    inserts, samples: since it was made or reset.
    max_size: that it was saved with.
  """

  size: int
  inserts: int
  samples: int
  max_size: int


def is_complete(path: str | os.PathLike[str]) -> bool:
  """Whether a server has finished writing the checkpoint `path`."""
  return pathlib.Path(path, _DONE).is_file()


def newest_first(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Returns the complete checkpoints in `folder`, which need not exist."""
  found = [done.parent for done in pathlib.Path(folder).glob(f'*/{_DONE}')]
  # Names of Reverb's own are local times, which do not sort.
  return sorted(
    found, key=lambda path: (path / _DONE).stat().st_mtime_ns, reverse=True
  )


def num_bytes(path: str | os.PathLike[str]) -> int:
  """Returns what a checkpoint takes on disk."""
  return sum(file.stat().st_size for file in pathlib.Path(path).iterdir())


def keep(written: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
  """Moves a checkpoint that a server wrote to `path`, which appears complete.

  One that is at `path` already is replaced.

  Raises:
    OSError: where that cannot be.
  """
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
    prefix=f'.{target.name}.', dir=target.parent
  ) as scratch:
    # A rename, or a copy where it is another file system.
    arrived = shutil.move(written, pathlib.Path(scratch, 'new'))
    if target.exists():
      os.rename(target, pathlib.Path(scratch, 'old'))
    os.rename(arrived, target)


def prune(folder: str | os.PathLike[str], keep_newest: int) -> None:
  """Deletes all complete checkpoints in `folder` but the newest ones."""
  for path in newest_first(folder)[keep_newest:]:
    # First, so that half of a checkpoint is never taken for a whole one.
    (path / _DONE).unlink()
    shutil.rmtree(path)


def read(path: str | os.PathLike[str]) -> dict[str, SavedTable]:
  """Returns the tables of a checkpoint by name, without reading their items.

  Raises:
    CheckpointError: in one sentence, where it is missing or damaged.
  """
  return {
    record.table_name: SavedTable(
      size=_size(record.rate_limiter),
      inserts=record.rate_limiter.insert_count,
      samples=record.rate_limiter.sample_count,
      max_size=record.max_size,
    )
    for record in _read_tables(pathlib.Path(path))
  }


def rewrite(
  path: str | os.PathLike[str],
  tables: Sequence[Mapping[str, Any]],
  target: str | os.PathLike[str],
) -> None:
  """Makes `target` the checkpoint `path` under the rules of `tables`.

  Contents and counts stay, but for items that the rules forbid (see above; the
  oldest go first) and for the count of samples where the rate limiter would
  otherwise be outside of its range. Large files are links to those of `path`.

  Args:
    path: a checkpoint.
    tables: rules as `main.py` takes them, of the same tables.
    target: folder to make.

  Raises:
    CheckpointError: where `path` is missing, damaged or of other tables.
  """
  source = pathlib.Path(path).resolve()
  records = _read_tables(source)
  rules = {table['name']: table for table in tables}
  saved = {record.table_name for record in records}
  if saved != set(rules):
    raise base.CheckpointError(
      f'The replay checkpoint {source} holds the tables {sorted(saved)} and '
      f'this run has {sorted(rules)}; use one of this run, or start with an '
      'empty replay.'
    )
  with _damage_told(source):
    for name in (_ITEMS, _CHUNKS):
      tfrecord.check(source / name)
    surplus = _surplus(source / _ITEMS, records, rules)
    folder = pathlib.Path(target)
    folder.mkdir(parents=True)
    if any(table.total for table in surplus.values()):
      items = _items_without(source / _ITEMS, surplus, rules)
      tfrecord.write(folder / _ITEMS, items)
    else:
      (folder / _ITEMS).symlink_to(source / _ITEMS)
  (folder / _CHUNKS).symlink_to(source / _CHUNKS)
  for record in records:
    name = record.table_name
    record.rate_limiter.delete_count += surplus[name].total
    _apply(rules[name], record)
  tfrecord.write(
    folder / _TABLES, (record.SerializeToString() for record in records)
  )
  (folder / _DONE).touch()


def selector(kind: str, exponent: float) -> reverb_pb2.KeyDistributionOptions:
  """Returns the message for a sampler or remover as in `main.py`."""
  options = reverb_pb2.KeyDistributionOptions()
  if kind == 'prioritized':
    options.prioritized.priority_exponent = exponent
    # An exponent of 0 is a default, which alone would leave the field unset.
    options.prioritized.SetInParent()
  elif kind in ('heap_max', 'heap_min'):
    options.heap.min_heap = kind == 'heap_min'
    options.heap.SetInParent()
  else:
    setattr(options, kind, True)
  return options


@contextlib.contextmanager
def _damage_told(path: pathlib.Path) -> Iterator[None]:
  try:
    yield
  except (OSError, message.DecodeError, tfrecord.DamagedRecords) as e:
    raise base.CheckpointError(
      f'The replay checkpoint {path} is damaged ({e}); use an older one, or '
      'remove it to start with an empty replay.'
    ) from e


def _read_tables(path: pathlib.Path) -> list[checkpoint_pb2.TableCheckpoint]:
  if not path.is_dir():
    raise base.CheckpointError(f'There is no replay checkpoint {path}.')
  with _damage_told(path):
    if not is_complete(path):
      raise tfrecord.DamagedRecords('it was not written to its end')
    for name in (_ITEMS, _CHUNKS):
      (path / name).stat()
    return [
      checkpoint_pb2.TableCheckpoint.FromString(record)
      for record in tfrecord.read(path / _TABLES)
    ]


def _size(limiter: checkpoint_pb2.RateLimiterCheckpoint) -> int:
  return limiter.insert_count - limiter.delete_count


@dataclasses.dataclass
class _Surplus:
  """How many items of a table the new rules forbid."""

  exhausted: int = 0
  oldest: int = 0

  @property
  def total(self) -> int:
    return self.exhausted + self.oldest


def _surplus(
  items: pathlib.Path,
  records: Sequence[checkpoint_pb2.TableCheckpoint],
  rules: Mapping[str, Mapping[str, Any]],
) -> dict[str, _Surplus]:
  result = {record.table_name: _Surplus() for record in records}
  if any(_fewer_times(record, rules) for record in records):
    for item, _ in _items(items):
      result[item.table].exhausted += _is_exhausted(item, rules)
  for record in records:
    surplus = result[record.table_name]
    left = _size(record.rate_limiter) - surplus.exhausted
    surplus.oldest = max(0, left - rules[record.table_name]['max_size'])
  return result


def _fewer_times(
  record: checkpoint_pb2.TableCheckpoint, rules: Mapping[str, Mapping[str, Any]]
) -> bool:
  before = record.max_times_sampled or math.inf
  now = rules[record.table_name]['max_times_sampled'] or math.inf
  return now < before


def _is_exhausted(
  item: reverb_pb2.PrioritizedItem, rules: Mapping[str, Mapping[str, Any]]
) -> bool:
  times = rules[item.table]['max_times_sampled']
  return 0 < times <= item.times_sampled


def _items(
  path: pathlib.Path,
) -> Iterator[tuple[reverb_pb2.PrioritizedItem, bytes]]:
  for record in tfrecord.read(path):
    yield reverb_pb2.PrioritizedItem.FromString(record), record


def _items_without(
  path: pathlib.Path,
  surplus: Mapping[str, _Surplus],
  rules: Mapping[str, Mapping[str, Any]],
) -> Iterator[bytes]:
  """Gives the records of all items but surplus ones; the oldest come first."""
  to_drop = {name: table.oldest for name, table in surplus.items()}
  for item, record in _items(path):
    if _is_exhausted(item, rules):
      continue
    if to_drop[item.table]:
      to_drop[item.table] -= 1
      continue
    yield record


def _apply(
  rules: Mapping[str, Any], record: checkpoint_pb2.TableCheckpoint
) -> None:
  """Sets all rules of a table's record to those of the configuration."""
  exponent = rules['priority_exponent']
  record.sampler.CopyFrom(selector(rules['sampler'], exponent))
  record.remover.CopyFrom(selector(rules['remover'], exponent))
  record.max_size = rules['max_size']
  record.max_times_sampled = rules['max_times_sampled']
  limiter = record.rate_limiter
  for name in (
    'samples_per_insert',
    'min_size_to_sample',
    'min_diff',
    'max_diff',
  ):
    setattr(limiter, name, rules[name])
  # Reverb lets pass what keeps this debt within [min_diff, max_diff]. Far
  # outside, one side would wait until the other had made up for all that
  # happened under the old ratio: hours of training on old items, or none.
  inserted = limiter.insert_count * limiter.samples_per_insert
  debt = inserted - limiter.sample_count
  if debt > limiter.max_diff:
    limiter.sample_count = math.ceil(inserted - limiter.max_diff)
  elif debt < limiter.min_diff:
    # Below 0 where too little was inserted to sample at all: a fresh start.
    limiter.sample_count = max(0, math.floor(inserted - limiter.min_diff))
