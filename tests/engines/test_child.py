"""Tests for programs that are children of workers."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from seedrl_jax.engines import child
from tests import runs


def _run(code: str, **files: bytes) -> child.Child:
  """Starts Python code with the files' paths as arguments."""
  started = child.Child()
  places = [f'{{{name}}}' for name in files]
  command = [sys.executable, '-c', textwrap.dedent(code), *places]
  started.start(command, '/', {'MINE': 'set'}, files)
  return started


def _all(started: child.Child) -> list[str | int]:
  output: list[str | int] = []
  while not output or not isinstance(output[-1], int):
    output += started.read()
  return output


def test_output_comes_before_the_exit_code():
  started = _run(
    """
    import os, sys
    print(os.getcwd(), os.environ['MINE'], open(sys.argv[1]).read(), flush=True)
    sys.exit('bad')
    """,
    secret=b'told',
  )
  assert _all(started) == ['/ set told', 'bad', 1]


def test_what_cannot_start_says_so(tmp_path: pathlib.Path):
  started = child.Child()
  started.start(['x'], str(tmp_path / 'no'), {}, {})
  message, code = _all(started)
  assert f'cannot be started in {tmp_path}/no: ' in str(message)
  assert code == 127


def test_end_reaches_it_though_the_worker_blocks_signals():
  old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
  try:
    started = _run('import time; print("up", flush=True); time.sleep(600)')
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, old)
  assert started.read() == ['up']
  started.end()
  assert _all(started) == [-signal.SIGTERM]
  # Has no effect any more.
  started.end()


def test_ports_are_free_and_differ():
  first, second = child.Child().free_ports(2)
  assert first != second


_WORKER = """
import sys, time
from seedrl_jax.engines import child
started = child.Child()
code = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'
started.start([sys.executable, '-c', code], '/', {}, {})
print(started.read()[0], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_worker(number: int):
  worker = subprocess.Popen(
    [sys.executable, '-c', _WORKER], cwd=runs.ROOT, stdout=subprocess.PIPE
  )
  assert worker.stdout is not None
  descriptor = os.pidfd_open(int(worker.stdout.readline()))
  worker.send_signal(number)
  # Hangs if the child does not end.
  assert select.select([descriptor], [], [], 300)[0]
  os.close(descriptor)
  worker.communicate()
