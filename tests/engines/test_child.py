"""Tests for programs that are children of workers."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from seedrl_jax.engines import child
from tests import runs


def _run(code: str, **files: bytes) -> tuple[child.Child, Iterator]:
  """Runs Python code with the files' paths as arguments."""
  program = child.Child()
  places = [f'{{{name}}}' for name in files]
  command = [sys.executable, '-c', textwrap.dedent(code), *places]
  return program, program.run(command, '/', {'MINE': 'set'}, files)


def test_output_comes_before_the_exit_code():
  _, output = _run(
    """
    import os, sys
    print(os.getcwd(), os.environ['MINE'], open(sys.argv[1]).read(), flush=True)
    sys.exit('bad')
    """,
    secret=b'told',
  )
  assert list(output) == [None, '/ set told', 'bad', 1]


def test_what_cannot_start_says_so(tmp_path: pathlib.Path):
  _, message, code = child.Child().run(['x'], str(tmp_path / 'no'), {}, {})
  assert f'cannot be started in {tmp_path}/no: ' in str(message)
  assert code == 127


def test_end_reaches_it_though_the_worker_blocks_signals():
  old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
  try:
    program, output = _run(
      'import time; print("up", flush=True); time.sleep(600)'
    )
    assert [next(output), next(output)] == [None, 'up']
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, old)
  program.end()
  assert list(output) == [-signal.SIGTERM]
  # Has no effect any more.
  program.end()


def test_ports_are_free_and_differ():
  first, second = child.Child().free_ports(2)
  assert first != second


_WORKER = """
import sys, time
from seedrl_jax.engines import child
code = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'
output = child.Child().run([sys.executable, '-c', code], '/', {}, {})
next(output)
print(next(output), flush=True)
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
