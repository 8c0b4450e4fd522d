"""Keeps a second run out of a work directory.

The lock is the operating system's, on a file that names the process that has
it. It goes with that process, however it ends, so that there is nothing to
clear away after a `kill -9`.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import Callable
from typing import IO

from seedrl_jax.runtime import workdir as workdir_lib

# What the file system answers if another process has the lock.
_HELD = (BlockingIOError, PermissionError)


def acquire(
  workdir: workdir_lib.Workdir, say: Callable[[str], None]
) -> IO[bytes]:
  """Locks a work directory for this process.

  Args:
    workdir: the directory, which exists.
    say: takes a sentence if the file system has no locks; the run then goes
      on without.

  Returns:
    A file that holds the lock until it is closed. Child processes do not get
    it: neither by fork, as the lock is a process' own, nor by exec.

  Raises:
    WorkdirError: if another process has the lock.
    NotWritten: if there cannot be such a file.
  """
  workdir_lib.clear_for_file(workdir.lock, say)
  try:
    # Appending, as the text is another's until the lock is ours.
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(workdir.lock, flags, 0o644), 'ab+', buffering=0)
  except OSError as e:
    raise workdir_lib.NotWritten(
      f'{workdir.lock} could not be written ({e.strerror}).'
    ) from e
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
      f'({e.strerror}); see that no second run uses it.'
    )
    return file
  file.truncate(0)
  # A full disk costs the other run a number.
  with contextlib.suppress(OSError):
    file.write(f'{os.getpid()} {socket.gethostname()}\n'.encode())
  return file


def _owner(file: IO[bytes]) -> str:
  file.seek(0)
  pid, _, host = file.read().decode(errors='replace').strip().partition(' ')
  if not pid:
    return 'another process'
  where = '' if host == socket.gethostname() else f' on {host}'
  return f'process {pid}{where}'
