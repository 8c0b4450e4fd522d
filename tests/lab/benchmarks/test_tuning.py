"""Tests of `benchmarks.tuning` on landscapes that are made up."""

import contextlib
import math
import re
import shlex
import sys

import pytest
from absl import flags
from ml_collections import config_flags

from seedrl_jax.configs import vtrace_cartpole
from seedrl_jax.lab.benchmarks import knobs as knobs_lib
from seedrl_jax.lab.benchmarks import tuning
from seedrl_jax.run import system
from seedrl_jax.runtime import settings
from tests import runs


class _Machine:
  """Runs whose speed is made up; opening takes 2 s and a window 1 s."""

  def __init__(self, speed, noise=lambda t: 1.0):
    self.time = 0.0
    self.most_open = self.num_open = 0
    self.lines, self.changes_of_runs = [], []
    self._speed, self._noise = speed, noise

  def clock(self):
    return self.time

  @contextlib.contextmanager
  def open_run(self, changes):
    self.time += 2.0
    speed = self._speed(**changes)
    self.changes_of_runs.append(changes)
    self.num_open += 1
    self.most_open = max(self.most_open, self.num_open)

    def window():
      self.time += 1.0
      return speed * self._noise(self.time)

    yield window
    self.num_open -= 1

  def search(self, seconds=1000.0, knobs=()):
    search = tuning.Search(
      self.open_run, seconds, self.lines.append, self.clock
    )
    with contextlib.closing(search):
      search.rate()
      search.run(knobs)
      self.lines += tuning.result(search)
    return search


def _double(key):
  return lambda best: [{key: 2 * best.get(key, 1)}]


def _peaks(x=1, y=1, **_):
  """The best is x = 4 and y = 8; each is worth some tenths."""
  return 100 - 10 * abs(math.log2(x) - 2) - 10 * abs(math.log2(y) - 3)


def test_finds_the_best_and_measures_it_again():
  machine = _Machine(_peaks)
  search = machine.search(knobs=[_double('x'), _double('y')])
  assert search.best == {'x': 4, 'y': 8}
  assert not search.ended_early
  assert (machine.num_open, machine.most_open) == (0, 2)
  assert machine.lines[-2:] == [
    'default 50 steps/s, tuned 100: 2.00 (2.00–2.00) of the default in 8 turns',
    'flags to paste: --config.x=4 --config.y=8',
  ]
  taken = [line for line in machine.lines if ', taken; ' in line]
  assert taken[0].startswith(
    '--config.x=2: 1.20 (1.20–1.20) of the best so far'
  )


def test_a_configuration_is_measured_once():
  machine = _Machine(_peaks)
  machine.search(knobs=[_double('x'), _double('x')])
  assert (
    len(machine.changes_of_runs)
    == len(set(map(str, machine.changes_of_runs))) + 1
  )


def test_what_is_not_faster_is_refused_after_two_turns():
  machine = _Machine(lambda x=1: 100 + x)
  search = machine.search(knobs=[_double('x')])
  assert not search.best
  assert machine.time == 2 + 3 + 2 + 2 * 2
  assert machine.lines[-1] == (
    'The default is as good as anything that was tried.'
  )


@pytest.mark.parametrize(('gain', 'is_taken'), [(1.2, False), (3.0, True)])
def test_a_gain_must_be_more_than_the_noise(gain, is_taken):
  # As slow as a half in every third second, whoever works then.
  machine = _Machine(
    lambda x=1: gain if x == 2 else 1.0, lambda t: 1.0 if t % 3 else 0.5
  )
  search = machine.search(knobs=[lambda best: [{'x': 2}]])
  assert search.best == ({'x': 2} if is_taken else {})


def test_steady_drift_decides_nothing():
  machine = _Machine(lambda x=1: 1.0, lambda t: 1.1**t)
  assert not machine.search(knobs=[_double('x')]).best


@pytest.mark.parametrize('seconds', [0, 20, 40, 60, 90, 200])
def test_ends_in_time_with_what_it_has(seconds):
  machine = _Machine(lambda x=1: x)
  search = machine.search(seconds, [_double('x')])
  # Beside what the default itself takes.
  assert machine.time <= max(seconds, 2 + 3)
  assert search.ended_early
  assert 'Time was up: more --minutes try more.' in machine.lines
  last = 'flags to paste' if search.best else 'Nothing was tried.'
  assert machine.lines[-1].startswith(last)


@pytest.mark.parametrize('error', [ValueError, MemoryError, system.RunFailed])
def test_what_is_not_possible_is_left_out(error):
  def speed(x=1, y=1):
    if x > 1:
      raise error('--config.x=2: no.\nTraceback')
    return y

  machine = _Machine(speed)
  search = machine.search(
    knobs=[_double('x'), lambda best: [{'y': 2}]], seconds=100
  )
  assert search.best == {'y': 2}
  assert machine.lines[0] == '--config.x=2: not possible: --config.x=2: no.'


def test_gain_that_does_not_last_is_named_as_chance():
  machine = _Machine(lambda x=1: x, lambda t: 1.0)
  search = machine.search(knobs=[lambda best: [{'x': 2}]])
  assert search.best
  machine = _Machine(
    lambda **_: 1.0, lambda t: 1.0 + (t < 24) * (t % 4 in (0, 3))
  )
  search = machine.search(knobs=[lambda best: [{'x': 2}]])
  assert machine.lines[-2] == 'Not in almost every turn: this may be chance.'


def test_flags_are_what_the_configuration_takes(monkeypatch):
  changes = {
    'env.num_envs': 512,
    'env.thread_affinity_offset': -1,
    'topology.inference_to_training': '1:3',
    'replay.backend': 'embedded',
  }
  values = flags.FlagValues()
  config_flags.DEFINE_config_file('config', flag_values=values)
  path = f'--config={vtrace_cartpole.__file__}'
  # Where overrides are looked for.
  argv = ['program', path, *shlex.split(tuning.flags(changes))]
  monkeypatch.setattr(sys, 'argv', argv)
  values(argv)
  leaves = dict(settings.leaves(values.config))
  assert {key: leaves[key] for key in changes} == changes


def test_a_small_run_is_tuned(monkeypatch):
  knob = knobs_lib.Knob((), lambda run: [{'env.num_envs': 6}])
  bad = knobs_lib.Knob((), lambda run: [{'env.num_envs': 0}])
  monkeypatch.setattr(knobs_lib, 'promising', lambda *args: [bad, knob])
  lines = []
  config = runs.tiny(total_env_frames=10**12)
  tuning.tune(config, 0.001, 1e6, lines.append)
  assert re.match(r'default: [\d,]+ steps/s; of the time environ', lines[0])
  assert lines[1].startswith('--config.env.num_envs=0: not possible: ')
  assert re.match(r'--config.env.num_envs=6: \d.* of the best so far', lines[2])
  assert lines[3].startswith(('default ', 'The default is as good as'))
