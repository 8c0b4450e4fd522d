"""Tests of how environments in threads and processes stop."""

import threading
import types
from typing import Any

import numpy as np
import pytest

from seedrl_jax.envs import base, env_thread
from tests.envs import streams
from tests.patience import PATIENCE, wait_until


@pytest.mark.parametrize('seconds_per_call', [9.0, 11.0])
def test_only_a_call_that_takes_too_long_counts_as_a_hang(
  seconds_per_call: float, monkeypatch
):
  now = 0.0
  monkeypatch.setattr(
    env_thread, 'time', types.SimpleNamespace(monotonic=lambda: now)
  )

  def wait(seconds: float) -> bool:
    nonlocal now
    now += seconds
    return now > 40 * seconds_per_call

  def call() -> None:
    env_thread.wait_while_busy(
      wait, lambda: [int(now // seconds_per_call)], 'Toy'
    )

  if seconds_per_call < env_thread.END_SECONDS:
    call()
  else:
    with pytest.raises(base.EnvironmentFailed, match='Environment 0 of Toy'):
      call()
    assert now < seconds_per_call


def test_calls_that_wait_at_an_interrupt_are_refused():
  thread = env_thread.EnvThread('envs')
  is_called, go_on = threading.Event(), threading.Event()

  def hold() -> None:
    is_called.set()
    go_on.wait(PATIENCE)

  thread.submit(hold)
  assert is_called.wait(PATIENCE)
  errors: list[BaseException] = []

  def call() -> None:
    try:
      thread.call(lambda: None)
    except base.StreamClosed as e:
      errors.append(e)

  caller = threading.Thread(target=call, daemon=True)
  caller.start()
  wait_until(lambda: thread._calls.qsize() == 1)
  thread.interrupt()
  go_on.set()
  caller.join(PATIENCE)
  assert errors
  assert thread.join(PATIENCE)
  with pytest.raises(base.StreamClosed):
    thread.call(lambda: None)


def _have_ended(stream: Any) -> bool:
  return not any(
    process.is_alive()
    for group in stream._groups
    for process in group._processes
  )


@pytest.mark.parametrize('count', [0, 2])
@pytest.mark.parametrize('method', ['step', 'close'])
def test_environment_that_hangs_is_named_by_close(
  monkeypatch, method: str, count: int
):
  monkeypatch.setattr(env_thread, 'END_SECONDS', PATIENCE)
  stream = streams.make_seven('stuck', count, at=3, method=method)
  first, _ = stream.recv(), stream.recv()
  if method == 'step':
    stream.send(np.zeros(5, np.int32), first.env_id)
    wait_until(lambda: stream._running() == [3])
  ended = threading.Event()

  def receive():
    with pytest.raises(base.StreamClosed):
      stream.recv()
    ended.set()

  threading.Thread(target=receive, daemon=True).start()
  stream.interrupt()
  assert ended.wait(PATIENCE)
  wait_until(lambda: stream._running() == [3])
  monkeypatch.setattr(env_thread, 'END_SECONDS', 0.0)
  with pytest.raises(
    base.EnvironmentFailed,
    match=r'^Environment 3 of tests\.envs\.toys:stuck did ',
  ):
    stream.close()
  stream.close()
  if count:
    wait_until(lambda: _have_ended(stream))


def test_process_that_hangs_is_killed_and_named_without_the_streams_close(
  monkeypatch,
):
  monkeypatch.setattr(env_thread, 'END_SECONDS', PATIENCE)
  stream = streams.make_seven('stuck', 2, at=3, method='close')
  stream.recv(), stream.recv()
  stream.interrupt()
  wait_until(lambda: stream._running() == [3])
  monkeypatch.setattr(env_thread, 'END_SECONDS', 0.0)
  with pytest.raises(base.EnvironmentFailed, match=r'^Environment 3 of '):
    stream._thread.join(PATIENCE)
  assert _have_ended(stream)


def test_processes_call_no_environment_after_a_stop():
  stream = streams.make_seven('scripted', 2)
  first, _ = stream.recv(), stream.recv()
  stream._groups[0].stop()
  stream.send(np.zeros(5, np.int32), first.env_id)
  with pytest.raises(base.StreamClosed):
    stream.recv()
  stream.close()


def test_interrupt_lets_the_environments_that_follow_make_no_step(monkeypatch):
  monkeypatch.setattr(env_thread, 'END_SECONDS', PATIENCE)
  stream = streams.make_seven('scripted', 0)
  first = stream.recv()
  envs = stream._groups[0].envs
  is_called, go_on = threading.Event(), threading.Event()
  calls = []

  def wait(action):
    is_called.set()
    assert go_on.wait(PATIENCE)
    return type(envs[0]).step(envs[0], action)

  monkeypatch.setattr(envs[0], 'step', wait)
  monkeypatch.setattr(envs[1], 'step', calls.append)
  stream.send(np.zeros(5, np.int32), first.env_id)
  assert is_called.wait(PATIENCE)
  stream.interrupt()
  go_on.set()
  stream.close()
  assert not calls


def test_send_lets_no_other_thread_interrupt_it(monkeypatch):
  stream = streams.make_seven('scripted', 0)
  first = stream.recv()
  is_free = []

  def start(action):
    thread = threading.Thread(
      target=lambda: is_free.append(stream._changed.acquire(blocking=False))
    )
    thread.start()
    thread.join()

  monkeypatch.setattr(stream._groups[0], 'start', start)
  stream.send(np.zeros(5, np.int32), first.env_id)
  assert is_free == [False]


def test_signal_handler_may_close_a_stream_that_sends(monkeypatch):
  stream = streams.make_seven('scripted', 2)
  first = stream.recv()
  pipe = stream._groups[0]._pipes[0]
  send = pipe._send_bytes

  def close_and_send(*args):
    stream.close()
    send(*args)

  monkeypatch.setattr(pipe, '_send_bytes', close_and_send)
  with pytest.raises(base.StreamClosed):
    stream.send(np.zeros(5, np.int32), first.env_id)
