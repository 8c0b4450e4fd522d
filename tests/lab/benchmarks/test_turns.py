"""Tests of `seedrl_jax.lab.benchmarks.turns`."""

import threading

import pytest

from seedrl_jax.configs import sac_pendulum
from seedrl_jax.lab.benchmarks import turns
from seedrl_jax.run import system
from tests import runs
from tests.patience import PATIENCE


class _Waits(threading.Event):
  """An event that tells whether a thread waits for it."""

  def __init__(self):
    super().__init__()
    self._waiter = threading.Event()

  def wait(self, timeout=None):
    self._waiter.set()
    return super().wait(timeout)

  def wait_for_waiter(self):
    assert self._waiter.wait(PATIENCE)


def test_worker_waits_at_the_gate():
  gate = turns._Gate()
  gate.event = _Waits()
  steps = []
  step = turns._gated(lambda: steps.append(1), gate)
  thread = threading.Thread(target=step)
  thread.start()
  gate.event.wait_for_waiter()
  assert not steps
  gate.ask_to_stop()
  thread.join(PATIENCE)
  assert steps == [1]


def test_learner_waits_at_the_gate():
  gate = turns._Gate()
  gate.event = _Waits()
  decided = []
  figures = type('', (), {'progress': lambda self: 0.5})()
  with gate.deciding(None, figures) as decide:
    thread = threading.Thread(
      target=lambda: decided.append(decide(True, False))
    )
    thread.start()
    gate.event.wait_for_waiter()
    assert not decided
    gate.event.set()
    thread.join(PATIENCE)
  assert decided == [(True, False, 0.5)]


def _sac():
  config = runs.tiny(sac_pendulum.get_config, env__id='Pendulum-v1')
  config.batch_size, config.updates_per_call = 8, 2
  config.unroll_length = 1
  config.total_env_frames = 10**12
  config.replay.min_size = config.batch_size
  return config


def _in_jax():
  return runs.tiny(
    env__id='gymnax:CartPole-v1',
    replay__backend='auto',
    total_env_frames=10**12,
  )


@pytest.mark.parametrize(
  'config', [runs.tiny(total_env_frames=10**12), _sac(), _in_jax()]
)
def test_runs_take_turns_and_end_while_they_wait(config):
  with turns.open_run(config, 0.0) as one, turns.open_run(config, 0.0) as other:
    for window in one, other, one:
      assert window() > 0


def test_failure_of_a_run_is_raised():
  config = runs.tiny(
    total_env_frames=10**12,
    **runs.toy('pixels', bad_after=300, failure='raise'),
  )
  with (
    pytest.raises(system.RunFailed, match='The toy is broken'),
    turns.open_run(config, 0.0) as window,
  ):
    while True:
      window()
