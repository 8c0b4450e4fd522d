"""Tests when a run warns that its network has died."""

import pytest

from seedrl_jax.run import network_watch


def _reports(watch, *values):
  """Returns the warnings of reports with a dead share and a `value_std`."""
  warnings = []
  for dead, std in values:
    metrics = {'health/value_std': std, 'health/dead_share': dead}
    metrics |= watch.metrics(metrics)
    warnings.append(watch.warning(metrics))
  return warnings


def test_warns_once_of_a_dead_network():
  watch = network_watch.NetworkWatch(None)
  dead = [(0.72, 0.002)] * 12
  first, *warnings = _reports(watch, (0.1, 0.05), *dead)
  assert watch.value_std == 0.05
  assert not first and [bool(x) for x in warnings] == [
    i == 4 for i in range(12)
  ]
  assert warnings[4] == (
    'The network has died: 72% of the units in its last dense layer are 0 for '
    'all observations, and the standard deviation of its values is 4.0% of the '
    "first report's. To fix it, see docs/metrics.md#a-network-that-has-died."
  )


@pytest.mark.parametrize(
  'reports',
  [
    [(0.72, 0.006)] * 20,
    [(0.58, 0.002)] * 20,
    [(0.9, 0.0)] * 4,
    [(0.9, 0.0)] * 4 + [(0.9, 0.04)] + [(0.9, 0.0)] * 4,
  ],
  ids=['values differ', 'units live', 'few reports', 'values differ once'],
)
def test_does_not_warn(reports):
  watch = network_watch.NetworkWatch(0.05)
  assert not any(_reports(watch, *reports))


def test_warns_if_single_reports_look_healthy():
  watch = network_watch.NetworkWatch(0.05)
  assert any(_reports(watch, *[(0.4, 0.006), (0.9, 0.001)] * 3))


def test_reports_without_a_measurement_do_not_count():
  watch = network_watch.NetworkWatch(0.05)
  for _ in range(4):
    assert not any(_reports(watch, (0.9, 0.0)))
    assert not any([watch.warning({}), watch.warning({})])
  assert all(_reports(watch, (0.9, 0.0)))


@pytest.mark.parametrize('first', [0.0, float('nan'), float('inf')])
def test_a_first_report_needs_values_that_differ(first):
  watch = network_watch.NetworkWatch(None)
  watch.metrics({'health/value_std': first})
  metrics = watch.metrics({'health/value_std': 0.5})
  assert metrics == {'health/value_std_ratio': 1.0} and watch.value_std == 0.5
