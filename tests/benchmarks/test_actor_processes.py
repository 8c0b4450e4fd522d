"""Tests of `seedrl_jax.benchmarks.actor_processes`, and of who needs it."""

import threading

import pytest

from seedrl_jax.benchmarks import actor_processes, actors
from tests import runs

# Only for tests that have already failed.
_PATIENCE = 300.0


@pytest.fixture(name='program')
def program_fixture(tmp_path, monkeypatch):
  """What runs in place of an actor; writes its text to a file."""

  def write(text: str) -> None:
    path = tmp_path / 'actor.py'
    path.write_text(text)
    monkeypatch.setattr(actor_processes, '_ACTOR', path)

  return write


def test_end_before_its_time_is_told(program):
  program('raise SystemExit(3)')
  ended = threading.Event()
  with actor_processes.ActorProcesses('nowhere:1', ended.set) as processes:
    processes.check()
    processes.start(4)
    assert ended.wait(_PATIENCE)
    with pytest.raises(RuntimeError, match='exit code 3'):
      processes.check()


def test_end_that_was_asked_for_is_none(program):
  program('import signal; signal.pause()')
  ended = threading.Event()
  with actor_processes.ActorProcesses('nowhere:1', ended.set) as processes:
    processes.start(4)
    processes.start(4)
  processes.check()
  assert not ended.is_set()
  assert not [
    t for t in threading.enumerate() if t.name.startswith('watch-actor')
  ]


def test_flags_of_an_actor(program, tmp_path):
  program(
    'import pathlib, sys\n'
    'pathlib.Path(__file__).with_name("flags").write_text(" ".join(sys.argv))'
  )
  ended = threading.Event()
  with actor_processes.ActorProcesses('host:1', ended.set) as processes:
    processes.start(6, '--inference=local')
    assert ended.wait(_PATIENCE)
    # One that the training's end has sent home.
    processes.check()
  flags = (tmp_path / 'flags').read_text().split()[1:]
  assert set(flags) == {
    *('--learner=host:1', '--patience=60', '--inference=local'),
    *('--groups=2', '--envs_per_group=3'),
  }


def test_benchmark_ends_where_its_actor_does(program):
  program('raise SystemExit(3)')
  length = actors.Length(windows=2, seconds=0.05, calls=20)
  rows = actors.measure('toy', runs.tiny().env, [1], [4], length)
  # Without an actor there is none to fail.
  assert [next(rows)['actors'], next(rows)['actors']] == [0, 0]
  with pytest.raises(RuntimeError, match='exit code 3'):
    next(rows)
