"""Tests for seedrl_jax/runtime/lock.py with a second process."""

import contextlib
import os
import subprocess
import sys

import pytest

from seedrl_jax.runtime import lock, workdir

_HOLD = """
import sys
from seedrl_jax.runtime import lock, workdir

held = lock.acquire(workdir.Workdir(sys.argv[1]), print)
print('held', flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def _held(path, **how):
  """Starts a process that locks the directory."""
  process = subprocess.Popen(
    [sys.executable, '-c', _HOLD, path],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
    **how,
  )
  with process:
    try:
      assert process.stdout.readline() == 'held\n'
      yield process
    finally:
      process.kill()


def _refused(path):
  with pytest.raises(workdir.WorkdirError) as error:
    lock.acquire(workdir.Workdir(path), pytest.fail)
  return str(error.value)


def test_a_second_process_is_told_who_has_it_until_that_is_killed(tmp_path):
  with _held(tmp_path) as process:
    assert _refused(tmp_path) == (
      f'--workdir={tmp_path} is in use by process {process.pid}; stop that '
      'run, or choose another folder.'
    )
    process.kill()
    process.wait()
    lock.acquire(workdir.Workdir(tmp_path), pytest.fail).close()
  assert (tmp_path / 'run.lock').read_text().startswith(f'{os.getpid()} ')


@pytest.mark.parametrize('is_link', [True, False])
def test_what_is_no_file_is_put_aside_and_what_it_leads_to_stays(
  tmp_path, is_link
):
  target, path = tmp_path / 'mine', tmp_path / 'run.lock'
  target.write_text('mine')
  path.symlink_to(target) if is_link else path.mkdir()
  said = []
  lock.acquire(workdir.Workdir(tmp_path), said.append).close()
  assert target.read_text() == 'mine'
  assert (tmp_path / 'run.lock.damaged-1').is_dir() != is_link
  (sentence,) = said
  assert sentence.endswith('is now run.lock.damaged-1.')


@pytest.mark.parametrize(
  ('text', 'owner'),
  [('7 far\n', 'process 7 on far'), ('', 'another process')],
)
def test_owner_may_be_of_another_machine_or_not_known(tmp_path, text, owner):
  with _held(tmp_path):
    (tmp_path / 'run.lock').write_text(text)
    assert f' is in use by {owner};' in _refused(tmp_path)


def test_child_processes_do_not_keep_it(tmp_path):
  with lock.acquire(workdir.Workdir(tmp_path), pytest.fail):
    child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, close_fds=False)
  with child, _held(tmp_path):
    assert child.poll() is None
    child.stdin.close()


def test_without_locks_the_run_goes_on_and_says_so(tmp_path, monkeypatch):
  def fail(*unused):
    raise OSError(95, 'Operation not supported')

  said = []
  monkeypatch.setattr(lock.fcntl, 'lockf', fail)
  lock.acquire(workdir.Workdir(tmp_path), said.append).close()
  assert 'cannot (Operation not supported); make sure that no' in said[0]
