"""Tests for seedrl_jax/runtime/process.py."""

import os
import subprocess
import sys

import pytest

from seedrl_jax.runtime import process

_PROGRAM = """
import os, sys, logging
from seedrl_jax.runtime import process
process.configure()
process.configure()
import jax
import jax.numpy as jnp
assert float(jnp.ones(3).sum()) == 3.0
print(os.environ.get('XLA_FLAGS', ''))
print(jax.config.read('jax_cpu_enable_async_dispatch'))
print(sys.getswitchinterval() < 0.005)
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
"""


def _run(program: str = _PROGRAM, **env: str) -> list[str]:
  clean = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, '-c', program],
    env=clean | env,
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout.splitlines()


def test_jax_works_with_what_is_set_and_setting_it_twice_is_as_once():
  flags, *others = _run()
  assert flags.count('--xla_cpu_experimental_ynn_fusion_type') == 1
  assert others == ['False', 'True', 'True']


@pytest.mark.parametrize(
  'own',
  [
    '--xla_force_host_platform_device_count=2',
    '--xla_cpu_experimental_ynn_fusion_type=invalid',
  ],
)
def test_keeps_the_users_own_flags(own):
  flags = _run(XLA_FLAGS=own)[0]
  assert own in flags
  assert flags.count('--xla_cpu_experimental_ynn_fusion_type') == 1


def test_inference_threads_take_processors_in_turn():
  cores = sorted(os.sched_getaffinity(0))
  assert process.pinned_core(-1, 0) is None
  assert process.pinned_core(cores[0], 0) == cores[0]
  assert process.pinned_core(cores[0], len(cores) - 1) == cores[-1]
  with pytest.raises(ValueError, match='inference_affinity_offset'):
    process.pinned_core(cores[-1], 1)


_THREADS = """
import os, sys
from seedrl_jax.runtime import process
process.schedule_threads()
process.schedule_threads()
print(sys.getswitchinterval() < 0.005)
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
print('jax' in sys.modules)
"""


def test_schedules_threads_without_jax_and_twice_as_once():
  # In a new process, as the settings stay.
  assert _run(_THREADS) == ['True', 'True', 'False']


def _patch(monkeypatch, libc='glibc', tunables=None):
  calls = []
  monkeypatch.setattr(process.platform, 'libc_ver', lambda: (libc, '2.36'))
  monkeypatch.setattr(process.os, 'execv', lambda *a: calls.append(a))
  monkeypatch.setattr(process.sys, 'orig_argv', ['python', '-u', 'x.py', '--y'])
  monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
  if tunables is not None:
    monkeypatch.setenv('GLIBC_TUNABLES', tunables)
  return calls


def test_restarts_once_with_the_same_arguments(monkeypatch):
  calls = _patch(monkeypatch)
  process.restart_with_huge_pages()
  process.restart_with_huge_pages()
  assert calls == [(sys.executable, [sys.executable, '-u', 'x.py', '--y'])]
  assert process.os.environ['GLIBC_TUNABLES'] == 'glibc.malloc.hugetlb=1'


def test_keeps_other_tunables_and_the_users_own(monkeypatch):
  calls = _patch(monkeypatch, tunables='glibc.malloc.check=1')
  process.restart_with_huge_pages()
  assert process.os.environ['GLIBC_TUNABLES'] == (
    'glibc.malloc.check=1:glibc.malloc.hugetlb=1'
  )
  assert len(calls) == 1
  calls = _patch(monkeypatch, tunables='glibc.malloc.hugetlb=0')
  process.restart_with_huge_pages()
  assert not calls


def test_leaves_other_libraries_alone(monkeypatch):
  calls = _patch(monkeypatch, libc='')
  process.restart_with_huge_pages()
  process.keep_freed_memory()
  assert not calls


def test_a_restarted_program_runs_to_its_end(tmp_path):
  program = tmp_path / 'program.py'
  program.write_text(
    'import os, sys\n'
    'from seedrl_jax.runtime import process\n'
    'process.restart_with_huge_pages()\n'
    'process.keep_freed_memory()\n'
    'print(os.environ.get("GLIBC_TUNABLES"), sys.argv[1:])\n'
  )
  done = subprocess.run(
    [sys.executable, program, 'a b'], capture_output=True, text=True, check=True
  )
  expected = (
    'glibc.malloc.hugetlb=1'
    if process.platform.libc_ver()[0] == 'glibc'
    else 'None'
  )
  assert done.stdout == f"{expected} ['a b']\n"
