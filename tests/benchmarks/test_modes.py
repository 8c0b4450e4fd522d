"""Tests of `seedrl_jax.benchmarks.modes`."""

import threading
import time

import pytest

from seedrl_jax.benchmarks import modes, timing, whole
from tests import runs

_PATIENCE = 300.0  # only for a test that has already failed
# Enough for items in flight at a window's ends not to matter.
_WINDOW_UPDATES = 10


class _Windows:
  """Makes the measurer wait until a window has all that is measured."""

  def __init__(self, monkeypatch: pytest.MonkeyPatch):
    self._count = modes._count
    monkeypatch.setattr(
      modes, '_wait_until_training', self._watch(modes._wait_until_training)
    )
    monkeypatch.setattr(whole, 'wait', self._wait)
    self._num_runs = 0

  def _watch(self, wait):
    def watched(parts, thread, processes):
      self._parts = parts
      self._num_runs += 1
      wait(parts, thread, processes)

    return watched

  def _wait(self, thread: threading.Thread, seconds: float) -> None:
    if seconds != _SECONDS:
      return
    before, deadline = self._count(self._parts), time.monotonic() + _PATIENCE
    while not self._is_full(before, self._count(self._parts)):
      assert thread.is_alive(), 'the run has ended'
      assert time.monotonic() < deadline, 'nothing happens'
      time.sleep(0.001)

  def _is_full(self, before: modes._Counts, now: modes._Counts) -> bool:
    return (
      now.updates >= before.updates + _WINDOW_UPDATES
      and now.lag_updates > before.lag_updates
      and now.env_steps > before.env_steps
      # Only the second run's actors write to the store.
      and (self._num_runs == 1 or now.store_bytes > before.store_bytes)
    )


# A window's length, which tells its wait from the warm-up's.
_SECONDS = 0.5


@pytest.mark.usefixtures('server_python')
def test_measures_one_mode_after_the_other(monkeypatch):
  _Windows(monkeypatch)
  config = runs.tiny(total_env_frames=10**9)
  case = whole.Case('toy', config)
  rows = list(modes.measure(case, 1, 4, timing.Windows(2, _SECONDS)))
  assert [row['inference'] for row in rows] == ['central', 'local']
  lines = [*modes.header(), *map(modes.line, rows)]
  assert len({line.count('|') for line in lines}) == 1
  for row in rows:
    assert row['frames']['median'] > 0
    assert row['updates_per_second'] > 0
    assert 0 <= row['lag_mean'] <= row['lag_max']
  central, local = rows
  # Unrolls pass through the learner, or bypass it.
  assert central['store_bytes_per_second'] == 0
  assert local['store_bytes_per_second'] > 0
  # A step of Catch takes at least 200 bytes.
  assert central['stream_bytes_per_second'] > 200 * central['frames']['minimum']
