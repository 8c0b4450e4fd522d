"""The lock that keeps a second run out of a work directory."""

import contextlib
import fcntl
import os
import pathlib
import re
import socket
import weakref
from collections.abc import Callable
from typing import IO, Any

# More than a process's id and the name of its machine.
_MOST_BYTES = 1000


class Held(Exception):
  """Another run holds the lock; the message names its process."""


class RunLock(contextlib.AbstractContextManager[Any]):
  """A locked file, until it is closed or its process ends, even by SIGKILL.

  `flock` locks an opened file, so it also keeps out other threads of a process,
  and stays if another part of the process reads the file. On NFS, Linux asks
  the server for a lock on the whole file, which other machines respect.
  """

  def __init__(self, path: pathlib.Path, say: Callable[[str], None]):
    """Locks `path`, which the holder may remove, and writes who holds it.

    `say` takes a sentence if the file system has no locks. Raises OSError, or
    Held if another run has it.
    """
    self._path = path
    while not self._lock(say):
      pass
    _locks.add(self)

  def _lock(self, say: Callable[[str], None]) -> bool:
    """Opens and locks the file; returns False if it was removed meanwhile."""
    # Appends: until the lock is ours, the text is another run's.
    self._file = self._path.open('ab+', buffering=0)
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      stat = os.fstat(self._file.fileno())
      if not os.path.samestat(stat, self._path.stat()):
        raise FileNotFoundError
      self._file.truncate(0)
    except FileNotFoundError:
      self._file.close()
      return False
    except BlockingIOError as e:
      with self._file:
        raise Held(_owner(self._file)) from e
    except OSError as e:
      say(
        f'--workdir={self._path.parent} is not locked, as its file system '
        f'cannot ({e.strerror}); make sure that no second run uses it.'
      )
    # The disk may be full.
    with contextlib.suppress(OSError):
      self._file.write(f'{os.getpid()} {socket.gethostname()}\n'.encode())
    return True

  def __exit__(self, *unused: object) -> None:
    self.close()

  def close(self) -> None:
    """Frees the lock, also if a child that forks right now has a copy."""
    if not self._file.closed:
      with contextlib.suppress(OSError):
        fcntl.flock(self._file, fcntl.LOCK_UN)
    self._file.close()


def _owner(file: IO[bytes]) -> str:
  file.seek(0)
  match = re.fullmatch(rb'(\d+) ([\w.-]+)\n', file.read(_MOST_BYTES))
  if match is None:
    return 'another process'
  pid, host = match[1].decode(), match[2].decode()
  if host != socket.gethostname():
    return f'process {pid} on {host}'
  return (
    'a run of this process' if pid == str(os.getpid()) else f'process {pid}'
  )


_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _close_in_child() -> None:
  """Closes a forked child's copies, which would keep the locks."""
  for lock in list(_locks):
    # Only the file; the lock stays as long as others have it open.
    lock._file.close()


os.register_at_fork(after_in_child=_close_in_child)
