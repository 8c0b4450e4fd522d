"""Tests of `seedrl_jax.benchmarks.actors`."""

import threading

import pytest

from seedrl_jax.benchmarks import actors, timing
from tests import runs

_CASE = actors.ActorsCase(
  'toy', runs.tiny().env, timing.Windows(2, 0.05), calls=20
)
# Seconds until a hanging test fails.
_PATIENCE = 300.0


def test_measures_remote_environments_against_local_ones():
  rows = list(actors.measure(_CASE, [1], [4]))
  assert [row['transport'] for row in rows] == ['unix', 'tcp'] * 2
  assert [row['actors'] for row in rows] == [0, 0, 1, 1]
  lines = [*actors.header(), *map(actors.line, rows)]
  assert len({line.count('|') for line in lines}) == 1
  for row in rows:
    assert row['case'] == 'toy'
    # An observation of Catch has 50 floats.
    assert 200 < row['bytes_per_step'] < 300
    assert 0 < row['latency_ms']['p50'] <= row['latency_ms']['p99']
  assert all(row['envs'] == 0 and row['share'] is None for row in rows[:2])
  for row in rows[2:]:
    assert row['envs'] == 4
    pool, remote = row['pool']['median'], row['remote']['median']
    assert row['share'] == pytest.approx(remote / pool)


def test_environments_that_are_no_groups_are_refused():
  with pytest.raises(ValueError, match='--envs_per_actor=3: must be'):
    actors.check_envs([3])


@pytest.fixture(name='program')
def program_fixture(tmp_path, monkeypatch):
  """Makes the program that runs in place of an actor."""

  def write(text: str) -> None:
    path = tmp_path / 'actor.py'
    path.write_text(text)
    monkeypatch.setattr(actors, '_ACTOR', path)

  return write


def test_end_before_its_time_is_told(program):
  program('raise SystemExit(3)')
  ended = threading.Event()
  with actors.ActorProcesses('nowhere:1', ended.set) as processes:
    processes.check()
    processes.start(4)
    assert ended.wait(_PATIENCE)
    with pytest.raises(RuntimeError, match='exit code 3'):
      processes.check()


def test_end_that_was_asked_for_is_none(program):
  program('import signal; signal.pause()')
  ended = threading.Event()
  with actors.ActorProcesses('nowhere:1', ended.set) as processes:
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
  with actors.ActorProcesses('host:1', ended.set) as processes:
    processes.start(6, '--inference=local')
    assert ended.wait(_PATIENCE)
    # An actor that ends with the training is no failure.
    processes.check()
  flags = (tmp_path / 'flags').read_text().split()[1:]
  assert set(flags) == {
    *('--learner=host:1', '--patience=60', '--inference=local'),
    *('--groups=2', '--envs_per_group=3'),
  }


def test_benchmark_ends_where_its_actor_does(program):
  program('raise SystemExit(3)')
  rows = actors.measure(_CASE, [1], [4])
  # Without actors none can fail.
  assert [next(rows)['actors'], next(rows)['actors']] == [0, 0]
  with pytest.raises(RuntimeError, match='exit code 3'):
    next(rows)
