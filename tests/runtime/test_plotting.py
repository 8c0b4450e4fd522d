"""Tests for seedrl_jax/runtime/plotting.py: contents, not looks."""

from collections.abc import Mapping
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax.runtime import plotting

_HEADER = 'time/updates,time/elapsed_s,time/env_frames,rollout/return'


def _run(name: str, config: Mapping[str, Any] | None = None, **columns: Any):
  return plotting.RunCurves(
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
    plotting.read_run(tmp_path)


def _config(
  seed: int, rate: float = 0.1, env_id: str = 'Toy'
) -> dict[str, Any]:
  env = {'id': env_id}
  optimizer = {'rate': rate}
  return {'agent': 'x', 'seed': seed, 'env': env, 'optimizer': optimizer}


def test_seeds_are_grouped_and_the_rest_is_not():
  groups = plotting.group_runs([
    _run('a', _config(1)),
    _run('b', _config(1, rate=0.2, env_id='Tic')),
    _run('c', _config(2)),
    _run('d'),
    _run('e'),
  ])
  members = [[run.name for run in group.runs] for group in groups]
  assert members == [['a', 'c'], ['b'], ['d'], ['e']]
  assert [group.label for group in groups] == [
    'x, Toy, optimizer.rate=0.1 (2 seeds)',
    'x, Tic, optimizer.rate=0.2',
    'd',
    'e',
  ]


def test_band_is_of_what_all_seeds_share():
  a = _run('a', time=[0, 10], y=[0, 10])
  b = _run('b', time=[2, 4, 6], y=[4, 6, 8])
  without = _run('c', time=[0, 1])
  band = plotting.band(plotting.SeedGroup('', [a, b, without]), 'time', 'y')
  assert band is not None
  chex.assert_equal_shape(band)
  np.testing.assert_allclose(band.x[[0, -1]], [2, 6])
  np.testing.assert_allclose(band.low, band.x)
  np.testing.assert_allclose(band.high, band.x + 2)
  np.testing.assert_allclose(band.mean, band.x + 1)
  later = _run('d', time=[12, 13], y=[2, 3])
  assert plotting.band(plotting.SeedGroup('', [a, later]), 'time', 'y') is None


def test_single_runs_are_lines_in_each_panel():
  run = _run(
    'a',
    **{
      'time/elapsed_s': [60, 120, 180],
      'time/env_frames': [60e3, 120e3, 180e3],
      # Before the first episode ended.
      'rollout/return': [np.nan, 10, 20],
      'time/frames_per_s': [1000] * 3,
    },
  )
  figure = plotting.draw([plotting.SeedGroup('a', [run])])
  returns, minutes, speed, _ = (axes.lines[0] for axes in figure.axes)
  np.testing.assert_allclose(returns.get_xdata(), [120e3, 180e3])
  np.testing.assert_allclose(returns.get_ydata(), [10, 20])
  np.testing.assert_allclose(minutes.get_xdata(), [2, 3])
  np.testing.assert_allclose(speed.get_ydata(), [1000] * 3)


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('plot.xyz', "Format 'xyz' is not supported"),
    ('absent/plot.png', 'No such file or directory'),
  ],
)
def test_a_file_that_cannot_be_written_is_said(tmp_path, name, reason):
  (tmp_path / 'metrics.csv').write_text(f'{_HEADER}\n1,1,10,\n2,2,20,\n')
  with pytest.raises((OSError, ValueError), match=reason):
    plotting.plot([tmp_path], tmp_path / name)
