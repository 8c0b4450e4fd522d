"""Tests for launch/plot.py as a program."""

import pathlib

from tests import runs

_PNG = b'\x89PNG'


def _workdir(folder: pathlib.Path) -> str:
  folder.mkdir()
  (folder / 'metrics.csv').write_text(
    'time/elapsed_s,time/updates,time/env_frames,time/frames_per_s\n'
    '1,1,9,9\n2,2,18,9\n'
  )
  return f'--workdir={folder}'


def test_default_file_is_in_the_first_workdir(tmp_path):
  folders = [_workdir(tmp_path / name) for name in 'ab']
  result = runs.call('plot', *folders)
  assert result.returncode == 0, result.stderr
  out = tmp_path / 'a' / 'plot.png'
  assert out.read_bytes().startswith(_PNG)
  assert result.stdout == f'plot: {out}\n'


def test_error_is_one_sentence(tmp_path):
  assert runs.refusal('plot', f'--workdir={tmp_path}') == (
    f'plot: {tmp_path} has no metrics.csv; name the --workdir of a run.'
  )
  flag = _workdir(tmp_path / 'a')
  (tmp_path / 'a/config.json').write_text('[1]')
  assert runs.refusal('plot', flag).endswith('put a good one back.')
