"""Tests for seedrl_jax/runtime/profiler.py."""

import pathlib

import jax
import pytest

from seedrl_jax.runtime import profiler

_WARM_UP = 20


@pytest.fixture(name='calls')
def calls_fixture(monkeypatch):
  calls = []
  monkeypatch.setattr(jax.profiler, 'start_trace', calls.append)
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: calls.append('stop'))
  return calls


def _run(num_updates, seen, calls):
  trace = profiler.UpdateProfiler(
    pathlib.Path('trace'), num_updates, calls.append
  )
  for i in range(seen):
    calls.append(i)
    trace.after_update()
  return trace


def test_trace_covers_its_updates(calls):
  _run(num_updates=2, seen=_WARM_UP + 5, calls=calls).close()
  events = calls[_WARM_UP - 1 :]
  assert events == [
    _WARM_UP - 1,
    'trace',
    _WARM_UP,
    _WARM_UP + 1,
    'stop',
    'Trace of 2 updates: trace',
    _WARM_UP + 2,
    _WARM_UP + 3,
    _WARM_UP + 4,
  ]


def test_run_that_ends_first_ends_the_trace(calls):
  trace = _run(num_updates=50, seen=_WARM_UP + 3, calls=calls)
  assert 'stop' not in calls
  trace.close()
  trace.close()
  assert calls[-2:] == ['stop', 'Trace of 3 updates: trace']
  assert calls.count('stop') == 1


def test_no_profile_unless_asked_for(calls):
  _run(num_updates=0, seen=_WARM_UP + 5, calls=calls).close()
  assert calls == list(range(_WARM_UP + 5))
