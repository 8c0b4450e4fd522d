"""Tests that all scripts parse, and of those that run here, with stubs."""

import pathlib
import shutil
import subprocess

import pytest

from tests.launch import stand_ins

# Writes its arguments, one a line; fails if a test wants it to.
_PRINTER = """#!/usr/bin/env bash
printf '%s\\n' "${0##*/}" "$@" --- >>"$LOG"
[[ "$*" != *"${FAIL_AT:-nothing}"* ]]
"""


class Clone:
  """A clone whose set-up and Python only record their calls."""

  def __init__(self, folder: pathlib.Path):
    self.root = folder / 'clone'
    self.log = folder / 'log'
    for name in ('launch/local.sh', 'launch/test.sh', '.ci/run'):
      (self.root / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(stand_ins.ROOT / name, self.root / name)
    self.add('launch/setup.sh', _PRINTER)
    self.add('.venv/bin/python', _PRINTER)
    self.add('bin/date', '#!/usr/bin/env bash\necho 20200102-030405\n')

  def add(self, name: str, script: str) -> None:
    stand_ins.add_program(self.root, name, script)

  def run(self, name: str, *arguments: str, fail_at: str = '') -> int:
    env = {'PATH': f'{self.root / "bin"}:/usr/bin:/bin', 'LOG': str(self.log)}
    if fail_at:
      env['FAIL_AT'] = fail_at
    command = [str(self.root / name), *arguments]
    return subprocess.run(command, env=env, check=False).returncode

  def calls(self) -> list[list[str]]:
    """Programs called so far, each with its arguments."""
    text = self.log.read_text().replace(str(self.root), 'ROOT')
    return [call.splitlines() for call in text.split('---\n')[:-1]]


@pytest.fixture(name='clone')
def _clone(tmp_path: pathlib.Path) -> Clone:
  return Clone(tmp_path)


def test_scripts_are_sound():
  """Fails if bash cannot parse one, or if shellcheck, if here, objects."""
  folder = stand_ins.ROOT / 'launch'
  scripts = [*folder.rglob('*.sh'), folder / 'slurm.sbatch']
  assert len(scripts) > 5
  for script in scripts:
    subprocess.run(['bash', '-n', script], check=True)
  if shellcheck := shutil.which('shellcheck'):
    subprocess.run([shellcheck, *scripts], check=True)


def test_local_trains_cartpole_in_a_new_folder(clone: Clone):
  assert clone.run('launch/local.sh') == 0
  assert clone.calls() == [
    ['setup.sh'],
    [
      'python',
      'ROOT/launch/train.py',
      '--config=ROOT/configs/vtrace_cartpole.py',
      '--workdir=ROOT/runs/vtrace_cartpole-20200102-030405',
    ],
  ]


@pytest.mark.parametrize(
  ('arguments', 'defaults'),
  [
    (['--config=a/b.py', '--workdir=w'], []),
    (['--config', 'a/b.py', '--workdir', 'my w'], []),
    (['--config=a/b.py:x/y'], ['--workdir=ROOT/runs/b-20200102-030405']),
    (['--config=b:x'], ['--workdir=ROOT/runs/b-20200102-030405']),
    (
      ['--workdir=w', '--config.env.id=Pong-v5'],
      ['--config=ROOT/configs/vtrace_cartpole.py'],
    ),
  ],
)
def test_local_passes_arguments_on(
  clone: Clone, arguments: list[str], defaults: list[str]
):
  assert clone.run('launch/local.sh', *arguments) == 0
  train = ['python', 'ROOT/launch/train.py', *defaults, *arguments]
  assert clone.calls() == [['setup.sh'], train]


def test_local_stops_where_setup_fails(clone: Clone):
  clone.add('launch/setup.sh', '#!/usr/bin/env bash\nexit 3\n')
  assert clone.run('launch/local.sh') == 3
  assert not clone.log.exists()


def _checks(*pytest_arguments: str) -> list[list[str]]:
  return [
    ['setup.sh', '--extras=test'],
    ['python', '-m', 'ruff', 'check'],
    ['python', '-m', 'ruff', 'format', '--check'],
    ['python', '-m', 'mypy'],
    [
      'python',
      '-m',
      'pytest',
      '-n',
      '2',
      '--dist=worksteal',
      *pytest_arguments,
    ],
  ]


@pytest.mark.parametrize('script', ['launch/test.sh', '.ci/run'])
def test_checks_come_before_tests(clone: Clone, script: str):
  assert clone.run(script, 'tests/envs', '-k', 'a or b') == 0
  assert clone.calls() == _checks('tests/envs', '-k', 'a or b')


def test_all_undoes_the_deselection_and_gives_tests_time(clone: Clone):
  assert clone.run('launch/test.sh', '--all', '-x') == 0
  more = ('-m', '', '-o', 'faulthandler_timeout=10800')
  assert clone.calls() == _checks(*more, '-x')


@pytest.mark.parametrize(
  ('fail_at', 'calls'), [('ruff check', 2), ('mypy', 4), ('pytest', 5)]
)
def test_first_failure_ends_the_checks(clone: Clone, fail_at: str, calls: int):
  assert clone.run('launch/test.sh', fail_at=fail_at) == 1
  assert len(clone.calls()) == calls
