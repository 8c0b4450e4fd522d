"""Tests of `seedrl_jax.runtime.memory`."""

import subprocess
import sys

from seedrl_jax.runtime import memory


def _patch(monkeypatch, libc='glibc', tunables=None):
  calls = []
  monkeypatch.setattr(memory.platform, 'libc_ver', lambda: (libc, '2.36'))
  monkeypatch.setattr(memory.os, 'execv', lambda *a: calls.append(a))
  monkeypatch.setattr(memory.sys, 'orig_argv', ['python', '-u', 'x.py', '--y'])
  monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
  if tunables is not None:
    monkeypatch.setenv('GLIBC_TUNABLES', tunables)
  return calls


def test_restarts_once_with_the_same_arguments(monkeypatch):
  calls = _patch(monkeypatch)
  memory.restart_with_huge_pages()
  memory.restart_with_huge_pages()
  assert calls == [(sys.executable, [sys.executable, '-u', 'x.py', '--y'])]
  assert memory.os.environ['GLIBC_TUNABLES'] == 'glibc.malloc.hugetlb=1'


def test_keeps_other_tunables_and_the_users_own(monkeypatch):
  calls = _patch(monkeypatch, tunables='glibc.malloc.check=1')
  memory.restart_with_huge_pages()
  assert memory.os.environ['GLIBC_TUNABLES'] == (
    'glibc.malloc.check=1:glibc.malloc.hugetlb=1'
  )
  assert len(calls) == 1
  calls = _patch(monkeypatch, tunables='glibc.malloc.hugetlb=0')
  memory.restart_with_huge_pages()
  assert not calls


def test_leaves_other_libraries_alone(monkeypatch):
  calls = _patch(monkeypatch, libc='')
  memory.restart_with_huge_pages()
  memory.keep_freed()
  assert not calls


def test_a_restarted_program_runs_to_its_end(tmp_path):
  program = tmp_path / 'program.py'
  program.write_text(
    'import os, sys\n'
    'from seedrl_jax.runtime import memory\n'
    'memory.restart_with_huge_pages()\n'
    'memory.keep_freed()\n'
    'print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:])\n'
  )
  done = subprocess.run(
    [sys.executable, program, 'a b'], capture_output=True, text=True, check=True
  )
  expected = (
    'glibc.malloc.hugetlb=1'
    if memory.platform.libc_ver()[0] == 'glibc'
    else 'None'
  )
  assert done.stdout == f"{expected} ['a b']\n"
