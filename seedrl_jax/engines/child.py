"""A program as the child of a worker: its place, output and end."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from seedrl_jax.runtime import bound_child

# A shell's exit code for what cannot be started.
_NOT_STARTED = 127


class Child:
  """A program on the worker's machine; one thread runs it, one may end it."""

  def __init__(self) -> None:
    self._process: subprocess.Popen[str] | None = None
    self._has_begun = threading.Event()

  def free_ports(self, count: int) -> list[int]:
    """Returns ports on which nobody listens yet."""
    with contextlib.ExitStack() as held:
      sockets = [held.enter_context(socket.socket()) for _ in range(count)]
      for each in sockets:
        each.bind(('', 0))
      return [each.getsockname()[1] for each in sockets]

  def run(
    self,
    command: Sequence[str],
    folder: str,
    variables: Mapping[str, str],
    files: Mapping[str, bytes],
  ) -> Iterator[str | int | None]:
    """Runs a program in `folder`, with more environment variables.

    Yields None at once, then its lines, then the exit code; that is negative if
    a signal has ended the program.

    In the command, `{name}` is the path of the file `name`. The contents of
    `files`, by name, are never on a disk.

    The kernel takes the end of the thread that forks for the parent's, so the
    same thread must take all that is yielded.
    """
    yield None
    words, numbers = list(command), []
    prefix = [sys.executable, '-I', bound_child.__file__, str(os.getpid()), '']
    try:
      for name, content in files.items():
        numbers.append(os.memfd_create(name))
        os.write(numbers[-1], content)
        path = f'/dev/fd/{numbers[-1]}'
        words = [word.replace(f'{{{name}}}', path) for word in words]
      self._process = subprocess.Popen(
        [*prefix, *words],
        cwd=folder,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors='replace',
        pass_fds=numbers,
        # A terminal's Ctrl-C reaches only who watches all programs.
        start_new_session=True,
      )
    except OSError as e:
      yield f'{words[0]} cannot be started in {folder}: {e}'
      yield _NOT_STARTED
      return
    finally:
      self._has_begun.set()
      for number in numbers:
        os.close(number)
    assert self._process.stdout is not None
    for line in self._process.stdout:
      yield line.rstrip('\n')
    yield self._process.wait()

  def end(self) -> None:
    """Sends SIGTERM to what was started, unless it has ended."""
    self._has_begun.wait()
    if self._process is not None:
      self._process.terminate()
