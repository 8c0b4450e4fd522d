"""Archives of arrays: uncompressed ZIPs of `.npy` members and one of JSON."""

import contextlib
import json
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, Any

import numpy as np

from seedrl_jax.replay import base

_META = 'meta.json'
# Bytes read at a time; bounds the memory of a restore.
_PIECE = 1 << 25


class ArchiveWriter:
  """Writes an archive; made by `create`."""

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
  """Reads an archive; made by `load`."""

  def __init__(self, file: zipfile.ZipFile):
    self._file = file
    self.meta: dict[str, Any] = json.loads(file.read(_META))

  def rows(self, name: str) -> Iterator[np.ndarray]:
    """Yields the array in pieces `[n, ...]`, n >= 1; none if it is empty."""
    with self._file.open(f'{name}.npy') as member:
      shape, dtype = _read_header(member)
      row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
      at_once = max(1, _PIECE // max(1, row_bytes))
      for start in range(0, shape[0], at_once):
        n = min(at_once, shape[0] - start)
        data = member.read(n * row_bytes)
        yield np.frombuffer(data, dtype).reshape(n, *shape[1:])

  def array(self, name: str) -> np.ndarray:
    with self._file.open(f'{name}.npy') as member:
      shape, dtype = _read_header(member)
      return np.frombuffer(member.read(), dtype).reshape(shape).copy()


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
  if np.lib.format.read_magic(member) != (2, 0):
    raise ValueError('a member is of another version')
  shape, _, dtype = np.lib.format.read_array_header_2_0(member)
  return shape, dtype


@contextlib.contextmanager
def create(path: str) -> Iterator[ArchiveWriter]:
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
def load(path: str) -> Iterator[ArchiveReader]:
  """Opens `path` for reading.

  Raises:
    CheckpointError: if it is missing or damaged, also from within the body.
  """
  try:
    with zipfile.ZipFile(path) as file:
      yield ArchiveReader(file)
  except base.CheckpointError:
    raise
  except FileNotFoundError as e:
    raise base.CheckpointError(f'There is no replay checkpoint {path}.') from e
  except (zipfile.BadZipFile, OSError, EOFError, KeyError, ValueError) as e:
    raise base.CheckpointError(
      f'The replay checkpoint {path} is damaged ({e}); use an older one, or '
      'remove it to start with an empty replay.'
    ) from e
