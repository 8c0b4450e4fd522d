"""Refusals of command lines by the programs of launch/.

A server has imported what the programs need and forks for each of them, which
takes a tenth of the time of a start.
"""

import functools
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parents[1]


def refusal(program: str, *flags: str) -> str:
  """Returns the sentence with which launch/PROGRAM.py refuses its flags."""
  server = _server()
  assert server.stdin is not None and server.stdout is not None
  argv = [str(ROOT / f'launch/{program}.py'), *flags]
  print(json.dumps([argv, os.getcwd()]), file=server.stdin, flush=True)
  code, error = json.loads(server.stdout.readline())
  assert code == 1 and error.count('\n') == 1, (code, error)
  return error.removesuffix('\n')


@functools.cache
def _server() -> subprocess.Popen[str]:
  """Starts the server, which ends with this process."""
  return subprocess.Popen(
    [sys.executable, __file__],
    env={
      **os.environ,
      'PYTHONPATH': str(ROOT),
      'JAX_PLATFORMS': 'cpu',
      # Else the programs would restart to get huge pages.
      'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=0',
    },
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )


def _serve() -> None:
  """Answers each command line with an exit code and standard error."""
  from seedrl_jax.runtime import process

  process.defer_packages()
  import seedrl_jax.lab.planning
  import seedrl_jax.run.system  # noqa: F401

  for line in sys.stdin:
    argv, folder = json.loads(line)
    with tempfile.TemporaryFile('w+') as error:
      if not (child := os.fork()):
        _run(argv, folder, error)
      code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
      error.seek(0)
      print(json.dumps([code, error.read()]), flush=True)


def _run(argv: list[str], folder: str, error: IO[str]) -> None:
  """Runs a program in this process, which ends with it."""
  os.chdir(folder)
  os.dup2(os.open(os.devnull, os.O_RDWR), 0)
  os.dup2(0, 1)
  os.dup2(error.fileno(), 2)
  sys.argv, sys.orig_argv = argv, [sys.executable, *argv]
  sys.path[0] = str(pathlib.Path(argv[0]).parent)
  code = 1
  try:
    runpy.run_path(argv[0], run_name='__main__')
    code = 0
  except SystemExit as e:
    code = e.code if isinstance(e.code, int) else int(e.code is not None)
  except BaseException:
    sys.excepthook(*sys.exc_info())
  sys.stderr.flush()
  os._exit(code)


if __name__ == '__main__':
  _serve()
