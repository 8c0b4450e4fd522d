"""Locks a work directory until its process ends, even by SIGKILL."""

import contextlib
import fcntl
import os
import pathlib
import socket
from collections.abc import Callable
from typing import IO

from seedrl_jax.runtime import workdir as workdir_lib

# Raised if another process holds the lock.
_HELD = (BlockingIOError, PermissionError)


def acquire(
  workdir: workdir_lib.Workdir, say: Callable[[str], None]
) -> IO[bytes]:
  """Returns a file that holds the lock of a directory until it is closed.

  Child processes do not inherit the lock. If the file system has no locks,
  `say` takes a sentence, and the run goes on without one.

  Raises:
    WorkdirError: if another process holds the lock.
    NotWritten: if the file cannot be written.
  """
  workdir_lib.clear_for_file(workdir.lock, say)
  file = _open(workdir.lock)
  try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except _HELD as e:
    with file:
      owner = _owner(file)
    raise workdir_lib.WorkdirError(
      f'--workdir={workdir.path} is in use by {owner}; stop that run, or '
      'choose another folder.'
    ) from e
  except OSError as e:
    say(
      f'--workdir={workdir.path} is not locked, as its file system cannot '
      f'({e.strerror}); make sure that no second run uses it.'
    )
    return file
  file.truncate(0)
  # The disk may be full.
  with contextlib.suppress(OSError):
    file.write(f'{os.getpid()} {socket.gethostname()}\n'.encode())
  return file


def _open(path: pathlib.Path) -> IO[bytes]:
  # Appends: until the lock is ours, the text is another process'.
  flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
  try:
    return os.fdopen(os.open(path, flags, 0o644), 'ab+', buffering=0)
  except OSError as e:
    raise workdir_lib.NotWritten(
      f'{path} could not be written ({e.strerror}).'
    ) from e


def _owner(file: IO[bytes]) -> str:
  file.seek(0)
  pid, _, host = file.read().decode(errors='replace').strip().partition(' ')
  if not pid:
    return 'another process'
  machine = '' if host == socket.gethostname() else f' on {host}'
  return f'process {pid}{machine}'
