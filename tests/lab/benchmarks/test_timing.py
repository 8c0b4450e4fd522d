"""Tests of `seedrl_jax.lab.benchmarks.timing`."""

import itertools

import pytest

from seedrl_jax.lab.benchmarks import timing


def test_text_has_median_and_extremes():
  assert timing.Timing(3.0, 1.0, 5.0, 0.3).text() == '3 (1–5)'


def test_counts_the_steps_of_every_window(monkeypatch):
  clock = iter(range(10_000))
  monkeypatch.setattr(timing.time, 'perf_counter', lambda: next(clock))
  monkeypatch.setattr(timing.time, 'process_time', lambda: 0.0)
  calls = []

  def work() -> int:
    calls.append(1)
    return 10

  # The clock advances by one per reading: a window of three has three calls and
  # ends at the fifth reading after its start.
  result = timing.measure(work, timing.Windows(2, 3))
  assert result.median == pytest.approx(10 * 3 / 5)
  assert len(calls) == 1 + 2 * 3


def test_watches_what_others_do_and_how_much_time_is_stolen(monkeypatch):
  monkeypatch.setattr(timing.time, 'perf_counter', itertools.count().__next__)
  cpu = iter([0.0, 1.0, 1.0, 4.0, 4.0, 7.0])
  monkeypatch.setattr(timing.time, 'process_time', cpu.__next__)
  monkeypatch.setattr(timing.steal.StealClock, 'share', lambda self: 0.25)
  counts = iter([0, 0.5, 0.5, 3.5, 3.5, 3.5])
  # Nothing was done in the last window.
  result = timing.watch(lambda: next(counts), lambda: None, 3)
  assert result == timing.Timing(1.0, 0.5, 3.0, 2.0, stolen=0.25)
