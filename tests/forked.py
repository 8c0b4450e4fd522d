"""Programs of launch/ as processes that a server forks.

The server has imported what they need, which takes most of the time of a start.
"""

import ctypes
import functools
import gc
import json
import os
import pathlib
import runpy
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
_PR_SET_CHILD_SUBREAPER = 36
# Bytes of a command line and of the environment.
_MOST_BYTES = 1 << 20


class Popen(subprocess.Popen[str]):
  """Runs a Python script with arguments, text output and an environment."""

  def _execute_child(
    self,
    args: Any,
    executable: Any,
    preexec_fn: Any,
    close_fds: Any,
    pass_fds: Any,
    cwd: Any,
    env: Any,
    startupinfo: Any,
    creationflags: Any,
    shell: Any,
    *rest: Any,
  ) -> None:
    """Has the server fork in place of this process; see the base class."""
    pipes = rest[:6]
    _, _, _, out, _, err = pipes
    request = [[*map(str, args)], str(cwd or os.getcwd()), env]
    link = _server()
    # The program's parent ends at once, which makes it this process's child.
    _reap_orphans(True)
    try:
      socket.send_fds(link, [json.dumps(request).encode()], [out, err])
      pid = link.recv(_MOST_BYTES)
      # That the parent has ended.
      if not link.recv(_MOST_BYTES):
        raise RuntimeError('The server of programs has ended.')
    finally:
      _reap_orphans(False)
    self.pid = int(pid)
    # Raises ChildProcessError if it is another's child.
    os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    self._child_created = True
    self._close_pipe_fds(*pipes)


def call(
  args: Sequence[str | pathlib.Path], **kwargs: Any
) -> subprocess.CompletedProcess[str]:
  """Runs a script to its end."""
  pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE}
  with Popen(args, text=True, **pipes, **kwargs) as process:
    out, err = process.communicate()
  return subprocess.CompletedProcess(args, process.returncode, out, err)


def _reap_orphans(is_reaper: bool) -> None:
  ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_reaper))


@functools.cache
def _server() -> socket.socket:
  """Starts the server, which ends with this process; returns its socket."""
  ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
  subprocess.Popen(
    [sys.executable, __file__, str(theirs.fileno())],
    env={
      **os.environ,
      'PYTHONPATH': str(ROOT),
      'JAX_PLATFORMS': 'cpu',
      'GRPC_VERBOSITY': 'ERROR',
    },
    stdin=subprocess.DEVNULL,
    # Pipes, as programs have, too.
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    pass_fds=[theirs.fileno()],
  )
  theirs.close()
  return ours


def _serve(link: socket.socket) -> str:
  """Forks for each request; returns the script in the program's process."""
  while True:
    request, fds, *_ = socket.recv_fds(link, _MOST_BYTES, 2)
    if not request:
      sys.exit()
    if parent := os.fork():
      os.waitpid(parent, 0)
      link.send(b'.')
      for fd in fds:
        os.close(fd)
    elif pid := os.fork():
      link.send(str(pid).encode())
      os._exit(0)
    else:
      link.close()
      return _become(*json.loads(request), *fds)


def _become(
  argv: list[str], folder: str, env: dict[str, str], out: int, err: int
) -> str:
  """Gives this process what a program gets at its start."""
  os.dup2(out, 1)
  os.dup2(err, 2)
  os.close(out)
  os.close(err)
  os.chdir(folder)
  os.environ.clear()
  # Else the program would restart to get huge pages.
  os.environ.update(env, GLIBC_TUNABLES='glibc.malloc.hugetlb=0')
  sys.argv, sys.orig_argv = argv, [sys.executable, *argv]
  paths = env['PYTHONPATH'].split(os.pathsep)
  sys.path[:1] = [str(pathlib.Path(argv[0]).parent), *paths]
  return argv[0]


def main(fd: str) -> None:
  """Serves; runs a script in each process that it forks."""
  from seedrl_jax.runtime import process

  process.defer_packages()
  import seedrl_jax.lab.planning
  import seedrl_jax.run.system  # noqa: F401

  # Garbage collection in a program would copy this memory.
  gc.freeze()
  script = _serve(socket.socket(fileno=int(fd)))
  runpy.run_path(script, run_name='__main__')


if __name__ == '__main__':
  main(sys.argv[1])
