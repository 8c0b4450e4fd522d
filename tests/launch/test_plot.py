"""Tests for launch/plot.py as a program."""

import pathlib
import re

from tests import runs

_PNG = b'\x89PNG'
_CONFIG = (runs.ROOT / 'tests/data/earlier_release/config.json').read_text()


def _workdir(folder: pathlib.Path) -> str:
  folder.mkdir()
  (folder / 'metrics.csv').write_text(
    'time/elapsed_s,time/updates,time/env_frames,time/frames_per_s,losses/x\n'
    '1,1,9,9,1\n2,2,18,9,2\n'
  )
  return f'--workdir={folder}'


def test_default_files_are_in_the_first_workdir(tmp_path):
  folders = [_workdir(tmp_path / name) for name in 'ab']
  result = runs.call('plot', *folders, '--smooth=2')
  assert result.returncode == 0, result.stderr
  outs = [tmp_path / 'a' / name for name in ('plot.png', 'plot-2.png')]
  for out in outs:
    assert out.read_bytes().startswith(_PNG)
  assert result.stdout == ''.join(f'plot: {out}\n' for out in outs)


def test_takes_folders_above_runs_as_arguments(tmp_path):
  folder = tmp_path / 'sweep'
  folder.mkdir()
  for name in 'ab':
    _workdir(folder / name)
    (folder / name / 'config.json').write_text(_CONFIG)
  (folder / 'c').mkdir()
  (folder / 'c/metrics.csv').touch()
  result = runs.call('plot', str(folder), f'--out={tmp_path}/both')
  assert result.returncode == 0, result.stderr
  assert result.stdout.startswith(f'plot: left out: {folder}/c/metrics.csv is')
  assert (tmp_path / 'both/plot.png').read_bytes().startswith(_PNG)


def test_a_pdf_has_two_pages(tmp_path):
  out = tmp_path / 'out.pdf'
  flags = f'--out={out}', '--x=updates'
  result = runs.call('plot', _workdir(tmp_path / 'a'), *flags)
  assert result.stdout == f'plot: {out}\n', result.stderr
  assert len(re.findall(rb'/Type /Page\b', out.read_bytes())) == 2


def test_error_is_one_sentence(tmp_path):
  assert runs.refusal('plot', f'--workdir={tmp_path}') == (
    f'plot: {tmp_path} holds no run (no metrics.csv in or below it); name '
    "runs' work directories, or a folder above them."
  )
  flag = _workdir(tmp_path / 'a')
  (tmp_path / 'a/plot-2.png').symlink_to(tmp_path / 'mine.png')
  assert 'plot-2.png is a link, so' in runs.refusal('plot', flag)
  (tmp_path / 'a/plot-2.png').unlink()
  (tmp_path / 'a/config.json').write_text('[1]')
  assert runs.refusal('plot', flag).endswith('put a good one back.')
