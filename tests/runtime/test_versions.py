"""Tests for seedrl_jax/runtime/versions.py."""

import json
import os
import subprocess

import jax
import pytest

from seedrl_jax.runtime import versions, workdir


def _note(folder):
  """Notes a start; returns all noted starts and what was reported."""
  said = []
  versions.note(workdir.Workdir(folder), said.append)
  return json.loads((folder / 'versions.json').read_text())['starts'], said


def test_every_start_is_noted(tmp_path):
  (first,), _ = _note(tmp_path)
  assert first['jax'] == jax.__version__
  assert set(first) >= {'time', 'commit', 'python', 'seedrl-jax', 'envpool'}
  starts, said = _note(tmp_path)
  assert starts[0] == first
  assert len(starts) == 2
  assert not said


@pytest.mark.parametrize('text', ['[]', '{}', '{"starts": 1}', '\x00'])
def test_damaged_note_is_put_aside(tmp_path, text):
  (tmp_path / 'versions.json').write_text(text)
  starts, (sentence,) = _note(tmp_path)
  assert len(starts) == 1
  assert (tmp_path / 'versions.json.damaged-1').read_text() == text
  assert sentence.endswith('damaged; it is now versions.json.damaged-1.')


def test_package_that_is_not_installed(monkeypatch):
  monkeypatch.setattr(versions, '_PACKAGES', ('seedrl-jax-that-is-none',))
  assert versions.versions()['seedrl-jax-that-is-none'] is None


def _git(folder, *arguments):
  who = ('-c', 'user.name=a', '-c', 'user.email=a@example.com')
  subprocess.run(
    ['git', *who, *arguments], cwd=folder, check=True, capture_output=True
  )


def test_commit_says_whether_files_were_changed(tmp_path, monkeypatch):
  _git(tmp_path, 'init')
  (tmp_path / 'file').write_text('a')
  assert versions._commit(tmp_path) is None
  _git(tmp_path, 'add', 'file')
  _git(tmp_path, 'commit', '-m', 'message')
  _git(tmp_path, 'tag', '-a', 'v1', '-m', 'message')
  commit = versions._commit(tmp_path)
  assert commit is not None
  assert len(commit) == 40
  (tmp_path / 'file').write_text('b')
  assert versions._commit(tmp_path) == commit + '-dirty'
  (tmp_path / 'inner').mkdir()
  assert versions._commit(tmp_path / 'inner') is None
  monkeypatch.setenv('PATH', os.devnull)
  assert versions._commit(tmp_path) is None
