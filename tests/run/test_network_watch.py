"""Tests when a run says that its network has died."""

import pytest

from seedrl_jax.run import network_watch


def _reports(watch, *values):
  """Returns the warnings of reports with a dead share and a deviation."""
  warnings = []
  for dead, deviation in values:
    metrics = {'health/value_deviation': deviation, 'health/dead_share': dead}
    metrics |= watch.metrics(metrics)
    warnings.append(watch.warning(metrics))
  return warnings


def test_a_dead_network_is_named_once():
  watch = network_watch.NetworkWatch(None)
  dead = [(0.72, 0.002)] * 12
  first, *warnings = _reports(watch, (0.1, 0.05), *dead)
  assert watch.value_deviation == 0.05
  assert not first and [bool(x) for x in warnings] == [
    i == 4 for i in range(12)
  ]
  assert warnings[4] == (
    'The network has died: 72% of the units of its last dense layer are zero '
    'for all observations, and its value is nearly the same for all (4.0% of '
    'its first deviation). What to do: docs/metrics.md#a-network-that-has-died'
  )


@pytest.mark.parametrize(
  'report', [(0.72, 0.006), (0.4, 0.002)], ids=['values differ', 'units live']
)
def test_one_sign_alone_is_not_death(report):
  watch = network_watch.NetworkWatch(0.05)
  assert not any(_reports(watch, *[report] * 20))


def test_reports_must_come_in_a_row():
  watch = network_watch.NetworkWatch(0.05)
  dead, alive = [(0.9, 0.0)] * 4, [(0.9, 0.04)]
  assert not any(_reports(watch, *dead, *alive, *dead))


def test_without_metrics_nothing_is_known():
  watch = network_watch.NetworkWatch(None)
  assert not watch.metrics({})
  assert not any(watch.warning({}) for _ in range(20))
  assert watch.value_deviation is None
