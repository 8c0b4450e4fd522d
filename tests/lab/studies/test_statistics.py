"""Tests for studies/statistics.py: by hand and against rliable."""

import numpy as np
import pytest
from rliable import library, metrics

from seedrl_jax.lab.studies import statistics

# Two tasks; the second has a run less.
_SCORES = [np.array([0.0, 1.0, 2.0, 9.0]), np.array([0.5, 1.0, 4.5])]
_NAMES = ('mean', 'median', 'iqm', 'optimality_gap')


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('mean', (3.0 + 2.0) / 2),
    ('median', 2.5),
    # Of 0, 0.5, 1, 1, 2, 4.5, 9 one is left out at either end.
    ('iqm', (0.5 + 1 + 1 + 2 + 4.5) / 5),
    # Clipped means are 3/4 and 2.5/3.
    ('optimality_gap', 1 - (0.75 + 2.5 / 3) / 2),
  ],
)
def test_statistics_of_two_tasks(name, expected):
  statistic = getattr(statistics, name)
  np.testing.assert_allclose(statistic(_SCORES), expected, rtol=1e-12)
  # Over resamples, here of the scores and of their doubles.
  resamples = [np.stack([task, 2 * task]) for task in _SCORES]
  doubles = [2 * task for task in _SCORES]
  np.testing.assert_allclose(
    statistic(resamples), [expected, statistic(doubles)], rtol=1e-12
  )


def test_the_median_of_one_task_is_of_its_runs():
  assert statistics.median(_SCORES[:1]) == 1.5
  assert statistics.mean(_SCORES[:1]) == 3.0


def test_profile_is_the_share_of_runs_above():
  shares = statistics.profile(_SCORES, np.array([-1.0, 1.0, 4.5, 9.0]))
  np.testing.assert_allclose(shares, np.array([7, 3, 1, 0]) / 7)


def test_resamples_keep_to_their_task():
  resamples = statistics.resample(_SCORES, reps=500)
  for task, drawn in zip(_SCORES, resamples, strict=True):
    assert drawn.shape == (500, len(task))
    assert set(drawn.flat) == set(task)
  again = statistics.resample(_SCORES, reps=500)
  np.testing.assert_array_equal(again[0], resamples[0])


def test_interval_is_of_the_middle_95_per_cent():
  values = np.stack([np.arange(1001.0), -np.arange(1001.0)], -1)
  np.testing.assert_allclose(
    statistics.interval(values), [[25, -975], [975, -25]]
  )
  assert statistics.has_interval(_SCORES)
  assert not statistics.has_interval([*_SCORES, np.array([1.0])])


@pytest.fixture(name='matrix')
def _matrix() -> np.ndarray:
  """Returns scores as rliable takes them, `[runs, tasks]`."""
  return np.random.default_rng(3).lognormal(size=(5, 7))


@pytest.mark.parametrize('name', _NAMES)
def test_statistics_agree_with_rliable(matrix, name):
  np.testing.assert_allclose(
    getattr(statistics, name)(list(matrix.T)),
    getattr(metrics, f'aggregate_{name}')(matrix),
    rtol=1e-12,
  )


def test_profiles_agree_with_rliable(matrix):
  thresholds = np.linspace(0, 4, 21)
  ours = statistics.profile(list(matrix.T), thresholds)
  theirs = library.score_distributions(matrix, thresholds)
  np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.parametrize('name', _NAMES)
def test_intervals_agree_with_rliable(matrix, name):
  statistic = getattr(statistics, name)
  reps, runs = 400, len(matrix)
  # rliable draws from NumPy's global generator.
  np.random.seed(5)
  _, theirs = library.get_interval_estimates(
    {'x': matrix},
    lambda x: np.array([getattr(metrics, f'aggregate_{name}')(x)]),
    reps=reps,
  )
  random = np.random.RandomState(5)
  picked = [random.choice(runs, matrix.shape) for _ in range(reps)]
  same = np.take_along_axis(matrix[None], np.stack(picked), 1)
  ours = statistics.interval(statistic(list(np.moveaxis(same, 2, 0))))
  np.testing.assert_allclose(ours, theirs['x'][:, 0], rtol=1e-12)
  # With our own draws within sampling error.
  interval = statistics.interval(statistic(statistics.resample(list(matrix.T))))
  np.testing.assert_allclose(interval, ours, atol=0.1 * np.ptp(ours) + 0.01)
