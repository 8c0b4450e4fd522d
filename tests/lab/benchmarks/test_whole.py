"""Tests of the benchmark on its smallest case, and of its tables."""

import re
import threading
import time
import types as python_types
from concurrent import futures

import pytest

from seedrl_jax.configs import benchmark
from seedrl_jax.lab.benchmarks import ceilings, environments, timing, whole
from seedrl_jax.run import system
from seedrl_jax.runtime import process
from tests.patience import PATIENCE


def _timing(rate: float, cpu: float) -> timing.Timing:
  return timing.Timing(rate, rate, rate, cpu)


def _topology(platform: str, shared: bool) -> python_types.SimpleNamespace:
  device = python_types.SimpleNamespace(platform=platform)
  other = python_types.SimpleNamespace(platform=platform)
  return python_types.SimpleNamespace(
    inference=(device,),
    training=(device if shared else other,),
    shared=shared,
  )


_CEILINGS = ceilings.Ceilings(
  env=_timing(1000.0, 2e-3),
  env_and_inference=_timing(400.0, 3e-3),
  inference=_timing(500.0, 1e-3),
  batch_size=8,
  update=_timing(250.0, 4e-3),
  store=_timing(1e6, 1e-3),
  publish=_timing(1e9, 0.0),
)


@pytest.mark.parametrize(
  ('platform', 'shared', 'ideal'),
  [
    # All stages share two cores: 2 + 1 + 4 + 1 ms a step.
    ('cpu', True, 2 / 8e-3),
    # One accelerator acts and trains: 1/500 + 1/250 s a step.
    ('gpu', True, 1 / (1 / 500 + 1 / 250)),
    # The training device is the busiest.
    ('gpu', False, 250.0),
  ],
)
def test_ideal_adds_up_what_shares_a_resource(
  monkeypatch, platform, shared, ideal
):
  monkeypatch.setattr(process, 'PROCESSORS', (0, 1))
  topology = _topology(platform, shared)
  assert _CEILINGS.ideal(topology) == pytest.approx(ideal)


class _Windows(system.System):
  """A run whose measurer sleeps until an update is done."""

  def sleep(self, seconds):
    del seconds
    counters, deadline = (
      self.parts.learner.counters,
      time.monotonic() + PATIENCE,
    )
    updates = counters.updates
    while counters.updates == updates:
      assert time.monotonic() < deadline, 'no update came'
      threading.Event().wait(0.001)


def test_measures_the_whole_of_a_small_case(monkeypatch, capsys):
  systems = []

  def make(*args, **kwargs):
    systems.append(_Windows(*args, **kwargs))
    return systems[-1]

  monkeypatch.setattr(whole.system, 'System', make)
  # Only in that module: others wait for processes with it.
  monkeypatch.setattr(
    whole,
    'time',
    python_types.SimpleNamespace(sleep=lambda s: systems[-1].sleep(s)),
  )
  config = benchmark.get_config(benchmark.FREE)
  config.env.num_envs = config.env.batch_size = 8
  config.batch_size = 4
  config.topology.max_devices = 1
  case = whole.Case('small', config, environments.free_streams(config))
  stages = timing.Windows(2, 0.01)
  row = whole.measure(case, stages, timing.Windows(2, 0.05))
  assert list(row.values())[:3] == ['small', '8', 'embedded']
  for name in ('environments, steps/s', '+ inference', '+ training'):
    assert re.fullmatch(r'[\d,]+ \([\d,]+–[\d,]+\)', row[name])
  assert float(row['of the ideal']) > 0
  text = capsys.readouterr().out
  for part in (
    '\nsmall, 8 environments (embedded store)\n',
    '\n| environments |',
    '\n| environments + inference |',
    '\n| inference, batch 8 |',
    '\n| update |',
    '\n| publishing |',
    '\nwhole system: ',
  ):
    assert part in text


def test_stages_of_a_replay_are_timed_per_environment_step():
  config = benchmark.get_config('mujoco_sac')
  config.env.num_envs = config.env.batch_size = 2
  config.topology.max_devices = 1
  config.network.hidden_sizes = (4,)
  config.updates_per_call, config.batch_size = 2, 8
  config.replay.samples_per_insert, config.replay.min_size = 4.0, 21
  # As soon as there are enough unrolls, a block more must wait for samples.
  config.replay.tolerance = 0.0
  assert ceilings.steps_per_update(config) == 2
  config.replay.samples_per_insert = 0.0
  assert ceilings.steps_per_update(config) == 8
  # Each sample is worth less than a block, and needs 21 unrolls.
  config.replay.samples_per_insert = 8.0
  timed = ceilings.measure(config, None, timing.Windows(2, 0.01))
  assert timed.store.median > 0


@pytest.mark.parametrize(('num_envs', 'least'), [(1, 4), (32 * 6, 6)])
def test_windows_have_whole_updates_and_unrolls(monkeypatch, num_envs, least):
  counters = python_types.SimpleNamespace(updates=0)
  worker = python_types.SimpleNamespace(env_steps=0)
  run = python_types.SimpleNamespace(
    parts=python_types.SimpleNamespace(
      learner=python_types.SimpleNamespace(counters=counters),
      workers=[python_types.SimpleNamespace(counters=worker)],
      plan=python_types.SimpleNamespace(
        agent=python_types.SimpleNamespace(updates_per_batch=10),
        topology=None,
      ),
    ),
    reporter=python_types.SimpleNamespace(waits=None),
  )
  slept = []

  def sleep(seconds):
    # Environments step in a burst; then a batch is trained on.
    slept.append(seconds)
    if len(slept) % 2:
      worker.env_steps += 32 * 20
    else:
      counters.updates += 10

  monkeypatch.setattr(whole.time, 'sleep', sleep)
  config = python_types.SimpleNamespace(
    batch_size=32,
    unroll_length=20,
    env=python_types.SimpleNamespace(num_envs=num_envs),
    replay=python_types.SimpleNamespace(samples_per_insert=1.0),
  )
  monkeypatch.setattr(whole, 'wait', lambda training, seconds: sleep(seconds))
  result = whole._watch(run, futures.Future(), config, timing.Windows(5, 1.0))
  assert result.trained_share == 1.0
  # The first three, one to begin with, and those of the windows.
  assert counters.updates // 10 == 3 + 1 + 5 * least


def test_run_that_has_ended_is_not_waited_for():
  ended = futures.Future()
  ended.set_result(None)
  with pytest.raises(RuntimeError, match='ended before it was measured'):
    whole.wait(ended, 300.0)
