"""Tests for launch/plot.py as a program."""

import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PNG = b'\x89PNG'


def _plot(*arguments: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, _ROOT / 'launch/plot.py', *arguments],
    env={'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )


def _workdir(folder: pathlib.Path) -> str:
  folder.mkdir()
  (folder / 'metrics.csv').write_text(
    'time/elapsed_s,time/env_frames,time/frames_per_s,rollout/return\n'
    '1,9,9,\n2,18,9,1\n'
  )
  return f'--workdir={folder}'


def test_default_file_is_in_the_first_workdir(tmp_path):
  result = _plot(_workdir(tmp_path / 'a'), _workdir(tmp_path / 'b'))
  assert result.returncode == 0, result.stderr
  out = tmp_path / 'a' / 'plot.png'
  assert out.read_bytes().startswith(_PNG)
  assert result.stdout == f'plot: {out}\n'


def test_out_names_the_file(tmp_path):
  out = tmp_path / 'curves.png'
  assert _plot(_workdir(tmp_path / 'a'), f'--out={out}').returncode == 0
  assert out.read_bytes().startswith(_PNG)


def test_error_is_one_sentence(tmp_path):
  result = _plot(f'--workdir={tmp_path}')
  assert result.returncode == 1
  assert result.stderr == (
    f'plot: {tmp_path} has no metrics.csv; name the --workdir of a run.\n'
  )


def test_without_workdir_the_usage_is_shown():
  result = _plot()
  assert result.returncode == 1
  assert 'Name runs as --workdir=DIR' in result.stdout + result.stderr
