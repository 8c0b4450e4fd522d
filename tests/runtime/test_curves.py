"""Tests for reading runs' curves from their work directories."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import chex
import numpy as np
import pytest

from seedrl_jax.runtime import curves

_HEADER = 'time/elapsed_s,time/env_frames,rollout/return'


def _workdir(
  folder: pathlib.Path,
  text: str,
  config: Mapping[str, Any] | None = None,
) -> pathlib.Path:
  folder.mkdir()
  (folder / 'metrics.csv').write_text(text)
  if config is not None:
    (folder / 'config.json').write_text(json.dumps(config))
  return folder


def _run(
  name: str, config: Mapping[str, Any], **columns: Any
) -> curves.RunCurves:
  return curves.RunCurves(
    name, config, {k: np.array(v, float) for k, v in columns.items()}
  )


def test_read_run(tmp_path):
  text = f'{_HEADER}\n1,100,\n2,200,-1.5\n'
  run = curves.read_run(_workdir(tmp_path / 'a', text, {'seed': 3}))
  assert run.name == 'a'
  assert run.config == {'seed': 3}
  chex.assert_trees_all_equal(
    run.columns,
    {
      'time/elapsed_s': np.array([1.0, 2.0]),
      'time/env_frames': np.array([100.0, 200.0]),
      'rollout/return': np.array([np.nan, -1.5]),
    },
  )


@pytest.mark.parametrize(
  'tail', ['3', '3,300', '3,300,4', '\n', '3,3\n', 'x\n']
)
def test_unfinished_last_line_is_dropped(tmp_path, tail):
  text = f'{_HEADER}\n1,100,5\n2,200,6\n{tail}'
  run = curves.read_run(_workdir(tmp_path / 'a', text))
  chex.assert_trees_all_equal(
    run.columns['time/elapsed_s'], np.array([1.0, 2.0])
  )


def test_rows_that_a_resumed_run_took_back_are_dropped(tmp_path):
  text = f'{_HEADER}\n1,100,1\n2,200,2\n3,300,3\n4,150,4\n5,250,5\n'
  run = curves.read_run(_workdir(tmp_path / 'a', text))
  frames, returns = curves.curve(run, 'time/env_frames', 'rollout/return')
  chex.assert_trees_all_equal(frames, np.array([100.0, 150.0, 250.0]))
  chex.assert_trees_all_equal(returns, np.array([1.0, 4.0, 5.0]))


@pytest.mark.parametrize(
  ('data', 'message'),
  [
    (b'', 'has no column'),
    (_HEADER.encode(), 'has no column'),
    (b'time,loss\n1,2\n', 'has no column'),
    (b'\xff\xfe\n', r'metrics\.csv is damaged'),
    (b'a,b\n"1"2,3\n', r'metrics\.csv is damaged'),
    (f'{_HEADER}\n'.encode(), 'no complete row'),
    (f'{_HEADER}\n1,'.encode(), 'no complete row'),
    (f'{_HEADER}\nx,100,2\n'.encode(), 'no complete row'),
  ],
)
def test_metrics_that_cannot_be_read_are_an_error(tmp_path, data, message):
  with pytest.raises(ValueError, match=r'has no metrics\.csv'):
    curves.read_run(tmp_path)
  (tmp_path / 'metrics.csv').write_bytes(data)
  with pytest.raises(ValueError, match=message):
    curves.read_run(tmp_path)


def test_curve_leaves_out_nan_and_unknown_columns():
  run = _run('a', {}, time=[1, 2, 3], loss=[np.nan, 5, 6])
  time, loss = curves.curve(run, 'time', 'loss')
  chex.assert_trees_all_equal((time, loss), (np.r_[2.0, 3.0], np.r_[5.0, 6.0]))
  assert curves.curve(run, 'time', 'entropy')[0].size == 0


def _config(
  seed: int, rate: float = 0.1, env_id: str = 'Toy'
) -> dict[str, Any]:
  env = {'id': env_id}
  optimizer = {'rate': rate}
  return {'agent': 'x', 'seed': seed, 'env': env, 'optimizer': optimizer}


def test_seeds_are_grouped_and_the_rest_is_not():
  runs = [
    _run('a', _config(1)),
    _run('b', _config(1, rate=0.2)),
    _run('c', _config(2)),
    _run('d', {}),
    _run('e', {}),
  ]
  groups = curves.group_runs(runs)
  members = [[run.name for run in group.runs] for group in groups]
  assert members == [['a', 'c'], ['b'], ['d'], ['e']]
  assert [group.label for group in groups] == [
    'x, Toy, optimizer.rate=0.1 (2 seeds)',
    'x, Toy, optimizer.rate=0.2',
    'd',
    'e',
  ]


def test_label_of_other_environments_is_their_id():
  runs = [_run('a', _config(1)), _run('b', _config(1, env_id='Tic'))]
  labels = [group.label for group in curves.group_runs(runs)]
  assert labels == ['x, Toy', 'x, Tic']


def test_labels_are_never_the_same():
  common = {'agent': 'x', 'a': 1, 'b': 1, 'c': 1}
  # A label shows three of the four keys that differ.
  runs = [
    _run('f', common | {'d': 1}),
    _run('g', common | {'d': 2}),
    _run('h', {'agent': 'x', 'a': 2, 'b': 2, 'c': 2, 'd': 1}),
  ]
  labels = [group.label for group in curves.group_runs(runs)]
  assert labels == [
    'x, a=1, b=1, c=1, f',
    'x, a=1, b=1, c=1, g',
    'x, a=2, b=2, c=2',
  ]


def test_band_is_of_what_all_seeds_share():
  a = _run('a', {}, time=[0, 10], y=[0, 10])
  b = _run('b', {}, time=[2, 4, 6], y=[4, 6, 8])
  band = curves.band(curves.SeedGroup('', [a, b]), 'time', 'y')
  assert band is not None
  chex.assert_equal_shape(band)
  np.testing.assert_allclose(band.x[[0, -1]], [2, 6])
  np.testing.assert_allclose(band.low, band.x)
  np.testing.assert_allclose(band.high, band.x + 2)
  np.testing.assert_allclose(band.mean, band.x + 1)


def test_band_ignores_a_run_without_the_column():
  a = _run('a', {}, time=[0, 10], y=[0, 10])
  b = _run('b', {}, time=[0, 1])
  band = curves.band(curves.SeedGroup('', [a, b]), 'time', 'y')
  assert band is not None
  np.testing.assert_allclose(band.x[-1], 10)


def test_no_band_where_nothing_is_shared():
  a = _run('a', {}, time=[0, 1], y=[0, 1])
  b = _run('b', {}, time=[2, 3], y=[2, 3])
  assert curves.band(curves.SeedGroup('', [a, b]), 'time', 'y') is None
  assert curves.band(curves.SeedGroup('', [a]), 'time', 'z') is None
