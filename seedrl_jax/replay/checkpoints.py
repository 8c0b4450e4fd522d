"""The replay's part of a run's checkpoints, and the archives that hold it.

An archive is an uncompressed ZIP of `.npy` members and one of JSON.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from seedrl_jax.replay import base, blocks

_META = 'meta.json'
# Bytes read at a time; bounds the memory of a restore.
_PIECE = 1 << 25
# Names that stores give to unfinished checkpoints.
_UNFINISHED = re.compile(r'\.\d+\..+|\d+\..+\.partial|\d+\.tmp')


class ArchiveWriter:
  """Writes an archive; made by `create_archive`."""

  def __init__(self, file: zipfile.ZipFile):
    self._file = file
    self._meta: dict[str, Any] = {}

  def add_meta(self, name: str, value: Any) -> None:
    """Adds a value that JSON can hold."""
    self._meta[name] = value

  def add_rows(
    self,
    name: str,
    count: int,
    shape: tuple[int, ...],
    dtype: np.dtype,
    pieces: Iterable[np.ndarray],
  ) -> None:
    """Adds an array `[count, *shape]`, given as pieces `[n, *shape]`."""
    header = {
      'descr': np.lib.format.dtype_to_descr(dtype),
      'fortran_order': False,
      'shape': (count, *shape),
    }
    with self._file.open(f'{name}.npy', 'w', force_zip64=True) as member:
      np.lib.format.write_array_header_2_0(member, header)
      for piece in pieces:
        contiguous = np.ascontiguousarray(piece, dtype)
        member.write(contiguous.reshape(-1).view(np.uint8).data)

  def add_array(self, name: str, array: np.ndarray) -> None:
    self.add_rows(name, len(array), array.shape[1:], array.dtype, [array])

  def finish(self) -> None:
    """Writes the values of `add_meta`."""
    self._file.writestr(_META, json.dumps(self._meta))


class ArchiveReader:
  """Reads an archive; made by `load_archive`.

  Its methods raise CheckpointError if the file is damaged.
  """

  def __init__(self, path: str, file: zipfile.ZipFile):
    self._path = path
    self._file = file
    with refusing_damage(path):
      self.meta: dict[str, Any] = json.loads(file.read(_META))

  def rows(self, name: str) -> Iterator[np.ndarray]:
    """Yields the array in pieces `[n, ...]`, n >= 1; none if it is empty."""
    with refusing_damage(self._path), self._file.open(f'{name}.npy') as member:
      np.lib.format.read_magic(member)
      shape, _, dtype = np.lib.format.read_array_header_2_0(member)
      row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
      at_once = max(1, _PIECE // max(1, row_bytes))
      for start in range(0, shape[0], at_once):
        n = min(at_once, shape[0] - start)
        data = member.read(n * row_bytes)
        yield np.frombuffer(data, dtype).reshape(n, *shape[1:])

  def array(self, name: str) -> np.ndarray:
    with refusing_damage(self._path), self._file.open(f'{name}.npy') as member:
      return np.lib.format.read_array(member)


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
      with zipfile.ZipFile(raw, 'w', zipfile.ZIP_STORED) as file:
        writer = ArchiveWriter(file)
        yield writer
        writer.finish()
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
  with refusing_damage(path):
    file = zipfile.ZipFile(path)
  with file:
    yield ArchiveReader(path, file)


@contextlib.contextmanager
def refusing_damage(path: str) -> Iterator[None]:
  """Raises CheckpointError if `path` is missing or the body cannot read it."""
  if not os.path.exists(path):
    raise base.CheckpointError(f'There is no replay checkpoint {path}.')
  try:
    yield
  # KeyError: a member is missing.
  except (zipfile.BadZipFile, OSError, EOFError, KeyError, ValueError) as e:
    raise base.CheckpointError(
      f'The replay checkpoint {path} is damaged ({e}); use an older one, or '
      'remove it to start with an empty replay.'
    ) from e


def check_fits(
  path: str,
  record: Mapping[str, Any],
  version: int,
  layout: blocks.UnrollLayout,
) -> None:
  """Raises CheckpointError if `record` is not of this version and layout."""
  start = f'The replay checkpoint {path} does not fit this run'
  saved = record['version']
  if saved != version:
    raise base.CheckpointError(f'{start}: it is of version {saved}.')
  layout.check_signature(start, record['unroll'])


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
    self._delete(lambda name: _UNFINISHED.fullmatch(name) is not None)

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
    self._delete(lambda name: name.isdigit() and int(name) not in steps)

  def _delete(self, is_meant: Callable[[str], bool]) -> None:
    if not self._folder.is_dir():
      return
    for path in self._folder.iterdir():
      if not is_meant(path.name):
        continue
      # Do not follow links.
      if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
      else:
        path.unlink()
