"""Tests of `seedrl_jax.lab.benchmarks.actors`."""

import threading

import pytest

from seedrl_jax.lab import launching
from seedrl_jax.lab.benchmarks import actors, timing
from tests import runs
from tests.patience import PATIENCE

_ENV = runs.tiny().env
_WINDOWS = timing.Windows(2, 0.05)


@pytest.fixture(autouse=True)
def small_fixture(monkeypatch):
  monkeypatch.setattr(actors, '_ENVS', 4)


@pytest.fixture(name='program')
def program_fixture(tmp_path, monkeypatch):
  """Makes the program that runs in place of an actor."""

  def write(text: str) -> None:
    (tmp_path / 'actor.py').write_text(text)
    monkeypatch.setattr(launching, 'LAUNCH', tmp_path)

  return write


@pytest.mark.parametrize('code', [0, 3])
def test_end_before_its_time_is_told(program, code):
  program(f'raise SystemExit({code})')
  ended = threading.Event()

  def run():
    with actors._actors('nowhere:1', 1, ended.set):
      assert ended.wait(PATIENCE)

  if code:
    with pytest.raises(RuntimeError, match='exit code 3'):
      run()
  else:
    # An actor that ends with the training is no failure.
    run()


def test_end_that_was_asked_for_is_none(program):
  program('import signal; signal.pause()')
  with actors._actors('nowhere:1', 2, lambda: None):
    pass
  names = [thread.name for thread in threading.enumerate()]
  assert not [name for name in names if name.startswith('watch-actors')]


def test_benchmark_ends_where_its_actor_does(program):
  program('raise SystemExit(3)')
  rows = actors.measure('toy', _ENV, [1], _WINDOWS)
  # Without actors none can fail.
  assert [next(rows)['share'], next(rows)['share']] == ['', '']
  with pytest.raises(RuntimeError, match='exit code 3'):
    next(rows)
