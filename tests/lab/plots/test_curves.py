"""Tests for seedrl_jax/lab/plots/curves.py."""

from collections.abc import Mapping
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax.lab.plots import curves

_HEADER = 'time/updates,time/elapsed_s,time/env_frames,rollout/return'


def _run(name: str, config: Mapping[str, Any] | None = None, **columns: Any):
  return curves.RunCurves(
    name, config or {}, {k: np.array(v, float) for k, v in columns.items()}
  )


@pytest.mark.parametrize(
  ('data', 'message'),
  [
    (b'', 'has no column'),
    (b'time,loss\n1,2\n', 'has no column'),
    (b'\xff\xfe\n', r'metrics\.csv is damaged'),
    (f'{_HEADER}\n'.encode(), 'no complete row'),
    (f'{_HEADER}\n1,'.encode(), 'no complete row'),
  ],
)
def test_metrics_that_cannot_be_read_are_an_error(tmp_path, data, message):
  (tmp_path / 'metrics.csv').write_bytes(data)
  with pytest.raises(ValueError, match=message):
    curves.read_run(tmp_path)


def _config(
  seed: int, rate: float = 0.1, env_id: str = 'Toy'
) -> dict[str, Any]:
  env = {'id': env_id}
  optimizer = {'rate': rate}
  log = {'writers': ['csv', f'my_writer:{seed}']}
  return {
    **{'agent': 'x', 'seed': seed, 'log': log},
    **{'env': env, 'optimizer': optimizer},
  }


def test_seeds_are_grouped_and_the_rest_is_not():
  groups = curves.group_runs([
    _run('a', _config(1)),
    _run('b', _config(1, rate=0.2, env_id='Tic')),
    _run('c', _config(2)),
    _run('d'),
    _run('e'),
    _run('f', _config(1, rate=0.3)),
  ])
  members = [[run.name for run in group.runs] for group in groups]
  assert members == [['a', 'c'], ['b'], ['d'], ['e'], ['f']]
  assert [group.label for group in groups] == [
    'x, Toy, optimizer.rate=0.1 (2 seeds)',
    # Nothing else has its environment.
    'x, Tic',
    'd',
    'e',
    'x, Toy, optimizer.rate=0.3',
  ]


def test_band_is_of_what_all_seeds_share():
  a = _run('a', time=[0, 10], y=[0, 10])
  b = _run('b', time=[2, 4, 6], y=[4, 6, 8])
  without = _run('c', time=[0, 1])
  band = curves.band(curves.SeedGroup('', [a, b, without]), 'time', 'y')
  assert band is not None
  chex.assert_equal_shape(band)
  np.testing.assert_allclose(band.x[[0, -1]], [2, 6])
  np.testing.assert_allclose(band.low, band.x)
  np.testing.assert_allclose(band.high, band.x + 2)
  np.testing.assert_allclose(band.mean, band.x + 1)
  later = _run('d', time=[12, 13], y=[2, 3])
  assert curves.band(curves.SeedGroup('', [a, later]), 'time', 'y') is None


@pytest.mark.parametrize(
  ('size', 'means'),
  [(1, [1, 4, 1, 8]), (2, [1, 2.5, 2.5, 4.5]), (3, [2.5, 2, 13 / 3, 4.5])],
)
def test_smoothing_is_a_mean_of_the_reports_around(size, means):
  frames = [10, 20, 30, 40, 50]
  run = _run('a', **{curves.FRAMES: frames, 'y': [1, 4, np.nan, 1, 8]})
  result = curves.smoothed(run, size)
  np.testing.assert_array_equal(result.columns[curves.FRAMES], frames)
  x, y = curves.curve(result, curves.FRAMES, 'y')
  np.testing.assert_array_equal(x, [10, 20, 40, 50])
  np.testing.assert_allclose(y, means)
  whole = curves.smoothed(run, 99).columns['y']
  np.testing.assert_allclose(whole, [3.5, 3.5, np.nan, 3.5, 3.5])
