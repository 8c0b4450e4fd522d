"""Tests for seedrl_jax/runtime/threads.py."""

import os
import threading

import pytest

from seedrl_jax.runtime import threads
from tests.patience import PATIENCE


class _Closed(Exception):
  pass


def _fail_here():
  raise ValueError('broken')


def test_thread_runs_on_its_own_core_and_no_other_does():
  group = threads.ThreadGroup()
  before = os.sched_getaffinity(0)
  core = max(before)
  seen = {}
  group.start('pinned', lambda: seen.update(a=os.sched_getaffinity(0)), core)
  group.start('free', lambda: seen.update(b=os.sched_getaffinity(0)))
  assert group.join(PATIENCE) == []
  assert seen == {'a': {core}, 'b': before}
  assert os.sched_getaffinity(0) == before


def test_failure_stops_the_group_and_keeps_its_traceback():
  group = threads.ThreadGroup()
  woken = threading.Event()
  group.on_stop(woken.set)
  group.start('waiter', lambda: woken.wait(PATIENCE))
  group.start('worker', _fail_here)
  assert group.wait(PATIENCE)
  assert group.join(PATIENCE) == []
  assert group.should_stop()
  assert group.failure.thread == 'worker'
  assert isinstance(group.failure.error, ValueError)
  assert 'in _fail_here' in group.failure.text
  assert 'ValueError: broken' in group.failure.text


@pytest.mark.parametrize('error', [SystemExit(3), KeyboardInterrupt()])
def test_no_thread_ends_unseen(error):
  def leave():
    raise error

  group = threads.ThreadGroup()
  group.start('worker', leave)
  assert group.join(PATIENCE) == []
  assert group.failure.error is error


def test_closed_is_an_end_only_while_stopping():
  def closed():
    raise _Closed

  group = threads.ThreadGroup(ends=(_Closed,))
  group.stop()
  group.run('worker', closed)
  assert group.failure is None
  # Any other error is still a failure.
  group.run('worker', _fail_here)
  assert group.failure.thread == 'worker'

  group = threads.ThreadGroup(ends=(_Closed,))
  group.run('worker', closed)
  assert isinstance(group.failure.error, _Closed)
  assert group.should_stop()


def test_stop_wakes_once_and_a_failing_waker_keeps_no_other_from_it():
  group = threads.ThreadGroup()
  calls = []
  group.on_stop(_fail_here)
  group.on_stop(lambda: calls.append(2))
  group.stop()
  group.stop()
  assert calls == [2]
  assert group.wait(0.0)
  assert 'in _fail_here' in group.failure.text


def test_join_shows_where_a_stuck_thread_is():
  release, started = threading.Event(), threading.Event()

  def stuck_here():
    started.set()
    release.wait(PATIENCE)

  group = threads.ThreadGroup()
  group.start('quick', lambda: None)
  group.start('stuck', stuck_here)
  started.wait(PATIENCE)
  reports = group.join(0.0)
  report = next(r for r in reports if 'Thread stuck did not end' in r)
  assert 'in stuck_here' in report
  assert 'stuck' in group.alive
  release.set()
  assert group.join(PATIENCE) == []
