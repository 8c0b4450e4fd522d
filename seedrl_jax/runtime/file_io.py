"""Reads and writes files so that an interruption costs none of them."""

import contextlib
import errno
import json
import os
import pathlib
import shutil
from collections.abc import Mapping
from typing import Any

from seedrl_jax import types


class NotWritten(types.Explained, RuntimeError):
  """A file could not be written, such as on a full disk."""


def put_aside(path: pathlib.Path) -> pathlib.Path:
  """Renames an unusable file, folder or link and returns the new path.

  'metrics.csv' becomes 'metrics.csv.damaged-1', or the next free number.
  """
  number = 1
  while os.path.lexists(target := f'{path}.damaged-{number}'):
    number += 1
  return path.rename(target)


def remove(path: pathlib.Path) -> None:
  """Deletes a file, a folder, or a link but not what it points to."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink(missing_ok=True)


def numbers_in(folder: pathlib.Path) -> list[int]:
  """Returns the numbers that are names in `folder`, if that exists, sorted.

  A name such as '007' is none: it would stand for the file '7'.
  """
  names = {path.name for path in folder.iterdir()} if folder.is_dir() else ()
  numbers = {int(name) for name in names if name.isdecimal()}
  return sorted(number for number in numbers if str(number) in names)


def append_whole(path: pathlib.Path, data: bytes) -> None:
  """Appends to a file, new or not; it is unchanged if that raises OSError."""
  with path.open('ab', buffering=0) as f:
    size = f.tell()
    try:
      if f.write(data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
      f.truncate(size)
      raise


def cut_last_line(path: pathlib.Path) -> None:
  """Cuts off a last line that was not written to its end."""
  # Works on a full disk.
  os.truncate(path, path.read_bytes().rfind(b'\n') + 1)


def write_whole(path: pathlib.Path, *parts: bytes) -> None:
  """Writes a file atomically, in a new folder if needed; raises NotWritten."""
  temporary = path.with_name(path.name + '.tmp')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A killed process may have left one.
    temporary.unlink(missing_ok=True)
    # 'x' follows no link.
    with temporary.open('xb') as file:
      file.writelines(parts)
      file.flush()
      # Else a power cut could leave the new name without its contents.
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except OSError as e:
    with contextlib.suppress(OSError):
      temporary.unlink(missing_ok=True)
    raise NotWritten(f'{path} could not be written ({e.strerror}).') from e


def write_json(path: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Writes JSON atomically; raises NotWritten if it cannot."""
  text = json.dumps(value, indent=2, default=str) + '\n'
  write_whole(path, text.encode())


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns a file's JSON object; raises OSError, or ValueError without one."""
  return json_object(path.read_bytes())


def json_object(text: bytes) -> dict[str, Any]:
  """Returns the JSON object in `text`; raises ValueError if it is none."""
  try:
    value = json.loads(text)
  except RecursionError:
    raise ValueError('its JSON is nested too deeply') from None
  if not isinstance(value, dict):
    raise ValueError('it is not a JSON object')
  return value
