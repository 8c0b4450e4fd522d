"""Rewrites a checkpoint so that a Reverb server loads it under current rules.

Runs in the server's environment, with TensorFlow but without this package. A
checkpoint is a folder of zlib streams, `tables.tfrecord` (a record for each
table), `items.tfrecord` and `chunks.tfrecord`, and an empty `DONE`, written
last. dm-reverb 0.14.0 has three quirks:

* A restored table keeps the checkpoint's rules (rate limiter, sizes, sampler).
* Restored items that were sampled as often as allowed never leave, and more
  items than fit are an error. We leave both out.
* A checkpoint without `DONE`, and items whose chunks were cut off, are skipped
  silently. We refuse both.
"""

import collections
import math
import pathlib
import zlib
from typing import Any

import tensorflow as tf
from google.protobuf import message
from reverb.cc import schema_pb2
from reverb.cc.checkpointing import checkpoint_pb2

_ITEMS = 'items.tfrecord'
_CHUNKS = 'chunks.tfrecord'
_TABLES = 'tables.tfrecord'
_DONE = 'DONE'
# Compressed bytes to read at a time.
_PIECE = 1 << 20


class BadCheckpoint(Exception):
  """A checkpoint cannot be restored; the message says why."""

  kind = 'checkpoint'


def rewrite(path: str, tables: list, target: str) -> None:
  """Writes the checkpoint `path` to `target` under the rules of `tables`.

  Drops items that the rules forbid, oldest first, and changes the count of
  samples if the rate limiter would be out of its range. Links large files.

  `tables` are rules as in `main.py`, of the same tables. Raises BadCheckpoint
  if `path` is missing, damaged or of other tables.
  """
  source, folder = pathlib.Path(path).resolve(), pathlib.Path(target)
  records, items = _read(source)
  rules = {table['name']: table for table in tables}
  saved = {record.table_name for record in records}
  if saved != set(rules):
    raise BadCheckpoint(
      f'The replay checkpoint {source} holds the tables {sorted(saved)} and '
      f'this run has {sorted(rules)}; use one of this run, or start with an '
      'empty replay.'
    )
  folder.mkdir(parents=True)
  (folder / _CHUNKS).symlink_to(source / _CHUNKS)
  allowed = _allowed(items, rules)
  if len(allowed) < len(items):
    _write(folder / _ITEMS, allowed)
  else:
    (folder / _ITEMS).symlink_to(source / _ITEMS)
  sizes = collections.Counter(item.table for item in allowed)
  for record in records:
    limiter = record.rate_limiter
    limiter.delete_count = limiter.insert_count - sizes[record.table_name]
    _apply(rules[record.table_name], record)
  _write(folder / _TABLES, records)
  (folder / _DONE).touch()


def _read(path: pathlib.Path) -> tuple:
  if not path.is_dir():
    raise BadCheckpoint(f'There is no replay checkpoint {path}.')
  try:
    if not (path / _DONE).is_file():
      raise ValueError('it was not written to its end')
    for name in (_TABLES, _ITEMS, _CHUNKS):
      _check_whole(path / name)
    return (
      _parse(path / _TABLES, checkpoint_pb2.PriorityTableCheckpoint),
      _parse(path / _ITEMS, schema_pb2.PrioritizedItem),
    )
  except (
    OSError,
    ValueError,
    zlib.error,
    message.DecodeError,
    tf.errors.OpError,
  ) as e:
    raise BadCheckpoint(
      f'The replay checkpoint {path} is damaged ({e}); use an older one, or '
      'remove it to start with an empty replay.'
    ) from e


def _check_whole(path: pathlib.Path) -> None:
  """Raises if a file is cut short, which TensorFlow does not always notice."""
  stream = zlib.decompressobj()
  with path.open('rb') as file:
    while piece := file.read(_PIECE):
      stream.decompress(piece)
  if not stream.eof:
    raise ValueError(f'{path.name} is cut short')


def _parse(path: pathlib.Path, kind: Any) -> list:
  records = tf.data.TFRecordDataset(str(path), compression_type='ZLIB')
  return [kind.FromString(r) for r in records.as_numpy_iterator()]


def _write(path: pathlib.Path, messages: list) -> None:
  with tf.io.TFRecordWriter(str(path), 'ZLIB') as writer:
    for each in messages:
      writer.write(each.SerializeToString())


def _allowed(items: list, rules: dict) -> list:
  """Returns the items, oldest first, that the rules allow."""
  allowed: list = []
  sizes: collections.Counter[str] = collections.Counter()
  # The newest have the first claim.
  for item in reversed(items):
    limits = rules[item.table]
    is_fresh = item.times_sampled < (limits['max_times_sampled'] or math.inf)
    if is_fresh and sizes[item.table] < limits['max_size']:
      sizes[item.table] += 1
      allowed.append(item)
  return allowed[::-1]


def _apply(rules: dict, record: checkpoint_pb2.PriorityTableCheckpoint) -> None:
  """Sets a table's record to the configured rules."""
  record.sampler.Clear()
  if rules['sampler'] == 'prioritized':
    # Setting the exponent to 0, its default, would leave the field unset.
    record.sampler.prioritized.SetInParent()
    exponent = rules['priority_exponent']
    record.sampler.prioritized.priority_exponent = exponent
  else:
    setattr(record.sampler, rules['sampler'], True)
  record.max_size = rules['max_size']
  record.max_times_sampled = rules['max_times_sampled']
  limiter = record.rate_limiter
  limiter.samples_per_insert = rules['samples_per_insert']
  limiter.min_size_to_sample = rules['min_size_to_sample']
  limiter.min_diff, limiter.max_diff = rules['min_diff'], rules['max_diff']
  # Reverb keeps this debt within [min_diff, max_diff]. Far outside, one side
  # would wait for the other to catch up on the old ratio, perhaps for hours.
  inserted = limiter.insert_count * limiter.samples_per_insert
  debt = inserted - limiter.sample_count
  if debt > limiter.max_diff:
    limiter.sample_count = math.ceil(inserted - limiter.max_diff)
  elif debt < limiter.min_diff:
    # Negative if sampling could not have begun yet.
    limiter.sample_count = max(0, math.floor(inserted - limiter.min_diff))
