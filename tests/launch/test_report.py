"""Tests for launch/report.py as a program."""

from tests import runs
from tests.lab.studies import study_runs


def test_default_folder_is_in_the_first(tmp_path):
  folders = [study_runs.write(tmp_path / name, [1.0]) for name in 'ab']
  result = runs.call('report', f'--workdir={folders[0]}', str(folders[1]))
  assert result.returncode == 0, result.stderr
  text = tmp_path / 'a/report/report.md'
  assert result.stdout == f'report: {text}\n'
  assert 'Runs: 2, of them finished: 2.' in text.read_text()


def test_errors_are_one_sentence(tmp_path):
  assert runs.refusal('report', str(tmp_path)).startswith(
    f'report: {tmp_path} holds no run (no config.json in or below it); name'
  )
  study_runs.write(tmp_path / 'a', [1.0])
  (tmp_path / 'a/report').symlink_to(tmp_path)
  assert 'report is a link, so' in runs.refusal('report', str(tmp_path / 'a'))
  flag = f'--out={tmp_path}/a/config.json'
  assert 'File exists' in runs.refusal('report', str(tmp_path), flag)
