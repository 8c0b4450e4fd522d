"""Tests of `seedrl_jax.benchmarks.timing`."""

import pytest

from seedrl_jax.benchmarks import timing


def test_summary_takes_medians_and_extremes():
  result = timing.summarize([5.0, 1.0, 3.0], [0.2, 0.4, 0.3])
  assert result == timing.Timing(3.0, 1.0, 5.0, 0.3)
  assert result.text() == '3 (1–5)'


def test_counts_the_steps_of_every_window(monkeypatch):
  clock = iter(range(10_000))
  monkeypatch.setattr(timing.time, 'perf_counter', lambda: next(clock))
  monkeypatch.setattr(timing.time, 'process_time', lambda: 0.0)
  calls = []

  def work() -> int:
    calls.append(1)
    return 10

  # The clock advances by one per reading: a window of three has three calls and
  # ends at the fourth reading after its start.
  result = timing.measure(work, timing.Windows(2, 3))
  assert result.median == pytest.approx(10 * 3 / 4)
  assert len(calls) == 1 + 2 * 3


def test_table_has_the_columns_of_its_rows(capsys):
  timing.print_table({'case': str(i), 'steps/s': '1,000'} for i in range(2))
  assert capsys.readouterr().out.split('\n') == [
    '',
    '| case | steps/s |',
    '| --- | --- |',
    '| 0 | 1,000 |',
    '| 1 | 1,000 |',
    '',
  ]
