"""The replay's part of a run's checkpoints, and the archives that hold it.

An archive is an uncompressed ZIP of `.npy` members and one of JSON, followed by
the SHA-256 of all that. Readers check the digest first, as the parsers of ZIP
and `.npy` fail in many ways on changed bytes, or not at all.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.replay import base, blocks
from seedrl_jax.runtime import file_io

_META = 'meta.json'
# Bytes read at a time; bounds the memory of a restore.
_PIECE = 1 << 25
# Names that stores give to unfinished checkpoints.
_UNFINISHED = re.compile(r'\.\d+\..+|\d+\..+\.partial')
_DIGEST_BYTES = hashlib.sha256().digest_size


class _HashingFile:
  """Hashes what it writes; cannot seek, so ZIP never changes written bytes."""

  def __init__(self, file: IO[bytes]):
    self.digest = hashlib.sha256()
    self._file = file

  def write(self, data: Any) -> int:
    self.digest.update(data)
    return self._file.write(data)

  def flush(self) -> None:
    self._file.flush()


class ArchiveWriter:
  """Writes an archive, with the JSON values in `meta`; see `create_archive`."""

  def __init__(self, file: zipfile.ZipFile):
    self._file = file
    self.meta: dict[str, Any] = {}

  def add_rows(
    self,
    name: str,
    count: int,
    row: types.ArraySpec,
    pieces: Iterable[np.ndarray],
  ) -> None:
    """Adds `count` rows, given as pieces `[n, *row.shape]`."""
    header = {
      'descr': np.lib.format.dtype_to_descr(row.dtype),
      'fortran_order': False,
      'shape': (count, *row.shape),
    }
    with self._file.open(f'{name}.npy', 'w', force_zip64=True) as member:
      np.lib.format.write_array_header_2_0(member, header)
      for piece in pieces:
        contiguous = np.ascontiguousarray(piece, row.dtype)
        member.write(contiguous.reshape(-1).view(np.uint8).data)

  def add_array(self, name: str, array: np.ndarray) -> None:
    row = types.ArraySpec(array.shape[1:], array.dtype)
    self.add_rows(name, len(array), row, [array])


class ArchiveReader:
  """Reads an archive, within `refusing_damage`; see `load_archive`."""

  def __init__(self, file: zipfile.ZipFile):
    self._file = file
    self.meta: dict[str, Any] = file_io.json_object(file.read(_META))

  def rows(
    self, name: str, row: types.ArraySpec, skip: int = 0
  ) -> Iterator[np.ndarray]:
    """Yields rows from `skip` on in pieces `[n, *row.shape]`; none if empty."""
    with self._file.open(f'{name}.npy') as member:
      np.lib.format.read_magic(member)
      shape, _, dtype = np.lib.format.read_array_header_2_0(member)
      if (shape[1:], dtype) != (row.shape, row.dtype):
        raise ValueError(f'{name} has rows of {dtype}{list(shape[1:])}')
      row_bytes = dtype.itemsize * math.prod(row.shape)
      at_once = max(1, _PIECE // max(1, row_bytes))
      member.seek(skip * row_bytes, os.SEEK_CUR)
      for start in range(skip, shape[0], at_once):
        n = min(at_once, shape[0] - start)
        data = member.read(n * row_bytes)
        yield np.frombuffer(data, dtype).reshape(n, *row.shape)

  def array(self, name: str, row: types.ArraySpec) -> np.ndarray:
    """Returns the whole array, `[N, *row.shape]`."""
    empty = np.empty((0, *row.shape), row.dtype)
    return np.concatenate([empty, *self.rows(name, row)])


@contextlib.contextmanager
def create_archive(path: str) -> Iterator[ArchiveWriter]:
  """Writes to a temporary file; renames it to `path` if the body succeeds."""
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  handle, temporary = tempfile.mkstemp(
    prefix=f'{target.name}.', suffix='.partial', dir=target.parent
  )
  try:
    with os.fdopen(handle, 'wb') as raw:
      hashing: Any = _HashingFile(raw)
      with zipfile.ZipFile(hashing, 'w', zipfile.ZIP_STORED) as file:
        writer = ArchiveWriter(file)
        yield writer
        file.writestr(_META, json.dumps(writer.meta))
      raw.write(hashing.digest.digest())
      raw.flush()
      # The rename must not reach the disk before the contents do.
      os.fsync(raw.fileno())
    os.replace(temporary, target)
  except BaseException:
    pathlib.Path(temporary).unlink(missing_ok=True)
    raise


@contextlib.contextmanager
def load_archive(path: str) -> Iterator[ArchiveReader]:
  """Opens `path`; raises CheckpointError if it is missing or damaged."""
  with contextlib.ExitStack() as cleanup:
    with refusing_damage(path):
      raw = cleanup.enter_context(open(path, 'rb'))
      _check_digest(raw)
      reader = ArchiveReader(cleanup.enter_context(zipfile.ZipFile(raw)))
    yield reader


def _check_digest(file: IO[bytes]) -> None:
  left = file.seek(0, os.SEEK_END) - _DIGEST_BYTES
  file.seek(0)
  digest = hashlib.sha256()
  while piece := file.read(max(0, min(left, _PIECE))):
    digest.update(piece)
    left -= len(piece)
  if file.read() != digest.digest():
    raise ValueError(
      'its contents do not match their digest, or it is of an earlier release, '
      'which wrote none'
    )


@contextlib.contextmanager
def refusing_damage(path: str) -> Iterator[None]:
  """Raises CheckpointError if `path` is missing or the body cannot read it."""
  if not os.path.exists(path):
    raise base.CheckpointError(f'There is no replay checkpoint {path}.')
  try:
    yield
  except (base.CheckpointError, MemoryError):
    raise
  # Whatever a parser raises on contents that a foreign program wrote.
  except Exception as e:
    reason = e if isinstance(e, (OSError, ValueError)) else repr(e)
    raise base.CheckpointError(
      f'The replay checkpoint {path} is damaged ({reason}); use an older one, '
      'or remove it to start with an empty replay.'
    ) from e


def check_fits(
  path: str,
  record: Mapping[str, Any],
  version: int,
  layout: blocks.UnrollLayout,
) -> None:
  """Raises CheckpointError if `record` is not of this version and layout."""
  start = f'The replay checkpoint {path} does not fit this run'
  saved = record.get('version')
  if saved != version:
    raise base.CheckpointError(f'{start}: it is of version {saved}.')
  layout.check_signature(start, record.get('unroll', {}))


class ReplayCheckpoints:
  """Saves a store beside the learner's checkpoints, one folder for each."""

  def __init__(
    self,
    store: base.TrajectoryStore,
    folder: pathlib.Path,
    report: Callable[[str], None],
  ):
    """Removes the remains of interrupted saves; `report` receives failures."""
    self._store = store
    self._folder = folder
    self._report = report
    for path in folder.iterdir() if folder.is_dir() else ():
      if _UNFINISHED.fullmatch(path.name):
        file_io.remove(path)

  def save(
    self, step: int, on_snapshot: Callable[[], None] | None = None
  ) -> str:
    """Saves the store; returns its name for `restore`, or '' if that fails.

    Failures are reported, not raised.
    """
    path = self._folder / str(step)
    try:
      self._folder.mkdir(parents=True, exist_ok=True)
      self._store.checkpoint(str(path), on_snapshot)
    except (OSError, RuntimeError) as e:
      reason = getattr(e, 'strerror', None) or e
      self._report(f'Checkpoint {step} has no replay: {reason}')
      return ''
    return path.name

  def restore(self, name: str) -> None:
    """Restores the checkpoint `name`; may raise CheckpointError."""
    self._store.restore(str(self._folder / name))

  def prune(self, steps: Collection[int]) -> None:
    """Deletes all checkpoints but those of `steps`."""
    for step in file_io.numbers_in(self._folder):
      if step not in steps:
        file_io.remove(self._folder / str(step))
