"""Tests of `seedrl_jax.envs.processes`."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax.envs import base, processes
from tests.envs import streams

_ACTIONS = np.random.default_rng(0).integers(0, 4, (60, 7), np.int32)


def _make(name: str, processes: int, **kwargs: Any) -> Any:
  """Makes seven environments in batches of five and two."""
  section = streams.toy(name, **kwargs)
  section.processes = processes
  return streams.make(section, 7, 5)


def _pids(stream: Any) -> list[int]:
  vectors = (group.envs._vector for group in stream._groups)
  return [process.pid for v in vectors for process in v.processes]


def _is_there(pid: int) -> bool:
  return pathlib.Path(f'/proc/{pid}').exists()


def _play(stream: Any) -> list[Any]:
  outputs = []
  for action in _ACTIONS:
    outputs.append(stream.recv())
    ids = outputs[-1].env_id
    stream.send(action[ids], ids)
  stream.close()
  return [outputs, stream.take_episodes()]


@pytest.mark.parametrize('name', ['scripted', 'seeded'])
def test_steps_are_those_of_environments_in_this_process(name: str):
  here, there = _play(_make(name, 0)), _play(_make(name, 4))
  chex.assert_trees_all_equal(here[0], there[0])
  assert here[1] == there[1] != []


def test_processes_are_shared_out_over_batches_and_end_with_the_stream():
  stream = _make('scripted', 4)
  pids = _pids(stream)
  assert len(pids) == 4 and os.getpid() not in pids
  stream.recv()
  stream.close()
  assert not any(map(_is_there, pids))


def test_processes_have_no_jax_and_outlive_signals_to_their_group():
  stream = _make('telling', 1)
  # Whether JAX is imported, and restricted to the CPU.
  assert stream.recv().observation.tolist() == [[0, 1]] * 5
  assert stream.recv().observation.tolist() == [[0, 1]] * 2
  for pid in _pids(stream):
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
  stream.send(np.zeros(5, np.int32), np.arange(5, dtype=np.int32))
  assert len(stream.recv().env_id) == 5
  stream.close()


@pytest.mark.parametrize('how', ['step', 'make'])
def test_failure_of_an_environment_comes_with_its_traceback(how: str):
  stream = _make('failing', 2, how=how)
  with pytest.raises(base.EnvironmentFailed) as caught:
    _play(stream)
  assert f'Unpicklable: {how}' in str(caught.value)
  assert str(caught.value).endswith('as the traceback above says.')
  stream.close()


def test_killed_process_is_noticed():
  stream = _make('scripted', 2)
  first = stream.recv()
  os.kill(_pids(stream)[0], signal.SIGKILL)
  with pytest.raises(base.EnvironmentFailed, match=r'\(exit code -9'):
    stream.send(np.zeros(5, np.int32), first.env_id)
    stream.recv()
    stream.recv()
  stream.close()
  assert not any(map(_is_there, _pids(stream)))


def test_step_that_never_ends_does_not_outlive_close(monkeypatch):
  monkeypatch.setattr(processes, 'END_SECONDS', 0.1)
  stream = _make('stuck', 2)
  first, _ = stream.recv(), stream.recv()
  stream.send(np.zeros(5, np.int32), first.env_id)
  group, stepping, ended = stream._groups[0], threading.Event(), []
  finish = group.finish

  def wait():
    stepping.set()
    return finish()

  def receive():
    with pytest.raises(base.StreamClosed):
      stream.recv()
    ended.append(True)

  group.finish = wait
  thread = threading.Thread(target=receive)
  thread.start()
  stepping.wait()
  stream.close()
  thread.join()
  assert ended and not any(map(_is_there, _pids(stream)))


_PARENT = """
import sys
from tests.envs import test_processes
if __name__ == '__main__':
  stream = test_processes._make('scripted', 2)
  stream.recv()
  print(*test_processes._pids(stream), flush=True)
  sys.stdin.read()
"""


def test_processes_end_with_a_killed_parent(tmp_path: Any):
  script = tmp_path / 'parent.py'
  script.write_text(_PARENT)
  with subprocess.Popen(
    [sys.executable, str(script)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    env={**os.environ, 'PYTHONPATH': ':'.join(sys.path)},
    text=True,
  ) as parent:
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    handles = [os.pidfd_open(pid) for pid in pids]
    parent.kill()
  assert len(handles) == 2
  for handle in handles:
    # Readable once the process has ended.
    assert select.select([handle], [], [], 60.0)[0]
    os.close(handle)


def test_processes_are_not_for_envpool():
  section = streams.config('CartPole-v1', processes=2)
  with pytest.raises(ValueError, match=r'env\.processes=2: is for .*Gymnasium'):
    streams.make(section, 2)
