"""Tests for seedrl_jax/runtime/versions.py; test_workdir.py has more."""

import os
import subprocess

from seedrl_jax.runtime import versions


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
  commit = versions._commit(tmp_path)
  assert commit is not None and len(commit) == 40
  (tmp_path / 'file').write_text('b')
  assert versions._commit(tmp_path) == commit + '-dirty'
  (tmp_path / 'inner').mkdir()
  assert versions._commit(tmp_path / 'inner') is None
  monkeypatch.setenv('PATH', os.devnull)
  assert versions._commit(tmp_path) is None
