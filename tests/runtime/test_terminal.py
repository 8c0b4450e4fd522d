"""Tests for seedrl_jax/runtime/terminal.py in processes."""

import os
import signal
import subprocess
import sys

import pytest

_HEAD = 'import os, signal, sys; from seedrl_jax.runtime import terminal; '


def _run(program, *start, **kwargs):
  command = [*start, sys.executable, '-c', _HEAD + program]
  return subprocess.run(command, capture_output=True, text=True, **kwargs)


@pytest.mark.parametrize(
  'number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
)
def test_every_signal_to_stop_calls_the_handler(number):
  ended = _run(
    'terminal.on_stop(lambda n, frame: sys.exit(n)); '
    f'os.kill(os.getpid(), {int(number)})'
  )
  assert (ended.returncode, ended.stderr) == (number, '')


def test_hang_up_stays_ignored():
  ended = _run(
    'terminal.on_stop(lambda n, frame: sys.exit(n)); '
    'os.kill(os.getpid(), signal.SIGHUP)',
    *('sh', '-c', 'trap \'\' HUP; exec "$@"', 'sh'),
  )
  assert (ended.returncode, ended.stderr) == (0, '')


@pytest.mark.parametrize('unbuffered', ['', '1'])
def test_what_nobody_reads_is_dropped_to_the_very_end(unbuffered):
  reading, writing = os.pipe()
  os.close(reading)
  with open(writing, 'w') as closed:
    ended = subprocess.run(
      [
        sys.executable,
        '-c',
        _HEAD + "terminal.say('x'); sys.stdout.write('rest'); "
        'terminal.drop_unread()',
      ],
      env={**os.environ, 'PYTHONUNBUFFERED': unbuffered},
      stdout=closed,
      stderr=subprocess.PIPE,
      text=True,
    )
  assert (ended.returncode, ended.stderr) == (0, '')


def test_outputs_that_the_program_closed_take_nothing():
  ended = _run("sys.stdout.close(); terminal.say('x'); terminal.drop_unread()")
  assert (ended.returncode, ended.stderr) == (0, '')


def test_outputs_that_are_missing_take_no_file(tmp_path):
  ended = _run(
    'terminal.ensure_outputs(); '
    f"f = open({str(tmp_path / 'file')!r}, 'w'); "
    "os.write(1, b'x'); os.write(2, b'x'); terminal.say('x')",
    *('sh', '-c', 'exec "$@" >&- 2>&-', 'sh'),
  )
  assert ended.returncode == 0
  assert (tmp_path / 'file').read_text() == ''
