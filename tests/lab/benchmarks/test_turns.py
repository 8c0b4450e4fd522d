"""Tests of `seedrl_jax.lab.benchmarks.turns`."""

import pytest

from seedrl_jax.configs import sac_pendulum
from seedrl_jax.lab.benchmarks import environments, tuning, turns
from seedrl_jax.run import system
from tests import runs


class _LoggedGate(turns._Gate):
  """Logs when a thread would wait for it, and never makes it wait."""

  def __init__(self, log: list[str]):
    super().__init__()
    self.event.wait = lambda: log.append('gate')


def test_stream_waits_at_the_gate_before_it_receives(monkeypatch):
  config, log = runs.tiny(), []
  spec = environments.factory.make_spec(config.env)
  free = environments.FreeStream(spec, 4, 2)
  receive = free.recv
  monkeypatch.setattr(free, 'recv', lambda: log.append('recv') or receive())
  stream = turns._GatedStream(free, _LoggedGate(log))
  assert (stream.num_envs, stream.min_batch_size) == (4, 2)
  assert stream.recv().env_id.tolist() == [0, 1]
  assert log == ['gate', 'recv']


def test_learner_waits_at_the_gate_before_it_decides():
  log = []
  # The decision reads the progress.
  figures = type('', (), {'progress': lambda self: log.append('decide')})()
  with _LoggedGate(log).deciding(None, figures) as decide:
    assert decide(True, False) == (True, False, None)
  assert log == ['gate', 'decide']


def test_a_gate_that_is_asked_to_stop_opens():
  gate = turns._Gate()
  gate.event.clear()
  gate.ask_to_stop()
  assert gate.event.is_set()


def _sac():
  config = runs.tiny(sac_pendulum.get_config, env__id='Pendulum-v1')
  config.batch_size, config.updates_per_call = 8, 2
  config.unroll_length = 1
  config.total_env_frames = 10**12
  tuning.begin_early(config)
  return config


@pytest.mark.parametrize('config', [runs.tiny(total_env_frames=10**12), _sac()])
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
