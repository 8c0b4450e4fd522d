"""A program as the child of a worker: its place, output and end."""

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from seedrl_jax.runtime import bound_child

# A shell's exit code for what cannot be started.
_NOT_STARTED = 127
# How long to wait for output.
_READ_SECONDS = 5.0


class Child:
  """A program on the worker's machine; thread-safe."""

  def __init__(self) -> None:
    # Lines, and after the last one the exit code.
    self._output: queue.SimpleQueue[str | int] = queue.SimpleQueue()
    self._process: subprocess.Popen[str] | None = None
    self._has_begun = threading.Event()

  def free_ports(self, count: int) -> list[int]:
    """Returns ports on which nobody listens yet."""
    with contextlib.ExitStack() as held:
      sockets = [held.enter_context(socket.socket()) for _ in range(count)]
      for each in sockets:
        each.bind(('', 0))
      return [each.getsockname()[1] for each in sockets]

  def start(
    self,
    command: Sequence[str],
    folder: str,
    variables: Mapping[str, str],
    files: Mapping[str, bytes],
  ) -> None:
    """Starts a program in `folder`, with more environment variables.

    In the command, `{name}` is the path of the file `name`. The contents of
    `files`, by name, are never on a disk.
    """
    # The kernel takes the end of the thread that forks for the parent's, so
    # that thread waits for the child.
    arguments = command, folder, variables, files
    threading.Thread(target=self._run, args=arguments, daemon=True).start()

  def _run(
    self,
    command: Sequence[str],
    folder: str,
    variables: Mapping[str, str],
    files: Mapping[str, bytes],
  ) -> None:
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
      self._output.put(f'{words[0]} cannot be started in {folder}: {e}')
      self._output.put(_NOT_STARTED)
      return
    finally:
      self._has_begun.set()
      for number in numbers:
        os.close(number)
    assert self._process.stdout is not None
    for line in self._process.stdout:
      self._output.put(line.rstrip('\n'))
    self._output.put(self._process.wait())

  def read(self) -> list[str | int]:
    """Waits some seconds; returns new lines, and after the last the exit code.

    The code is negative if a signal has ended the program.
    """
    output: list[str | int] = []
    with contextlib.suppress(queue.Empty):
      output.append(self._output.get(timeout=_READ_SECONDS))
      while True:
        output.append(self._output.get_nowait())
    return output

  def end(self) -> None:
    """Sends SIGTERM to what was started, unless it has ended."""
    self._has_begun.wait()
    if self._process is not None:
      self._process.terminate()
