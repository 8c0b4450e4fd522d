"""Tests that all scripts parse, and of those that run here, with stubs."""

import pathlib
import platform
import re
import shutil
import subprocess
import sys

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
  """Fails if bash cannot parse one, or a linter that is here objects."""
  folder = stand_ins.ROOT / 'launch'
  scripts = [*folder.rglob('*.sh'), folder / 'slurm.sbatch']
  assert len(scripts) > 5
  for script in scripts:
    subprocess.run(['bash', '-n', script], check=True)
  if shellcheck := shutil.which('shellcheck'):
    subprocess.run([shellcheck, *scripts], check=True)
  if actionlint := shutil.which('actionlint'):
    workflows = stand_ins.ROOT.glob('.github/workflows/*')
    subprocess.run([actionlint, *workflows], check=True)


@pytest.mark.skipif(
  platform.machine() != 'x86_64', reason='hadolint is only for x86-64'
)
@pytest.mark.parametrize('name', ['Dockerfile', 'k8s/Dockerfile'])
def test_dockerfiles_are_sound(name):
  folder = stand_ins.ROOT / 'launch'
  hadolint = pathlib.Path(sys.executable).with_name('hadolint')
  subprocess.run([hadolint, folder / name], check=True)
  text = (folder / name).read_text()
  for sources in re.findall(r'^COPY ([^-].*) \S+$', text, re.MULTILINE):
    for source in sources.split():
      assert (stand_ins.ROOT / source).exists(), source


def test_the_image_has_the_libraries_of_envpool():
  table = (stand_ins.ROOT / 'seedrl_jax/envs/libraries.txt').read_text()
  packages = re.findall(r'^[^#]\S+ (\S+) EnvPool$', table, re.MULTILINE)
  image = (stand_ins.ROOT / 'launch/Dockerfile').read_text()
  assert packages and all(f' {name} ' in image for name in packages)


@pytest.mark.parametrize(
  ('arguments', 'defaults'),
  [
    (
      [],
      [
        '--workdir=ROOT/runs/vtrace_cartpole-20200102-030405',
      ],
    ),
    (['--config', 'a/b.py', '--workdir', 'my w'], []),
    (['--config=a/b.py:x/y'], ['--workdir=ROOT/runs/b-20200102-030405']),
    (
      # A run that is there has its own configuration.
      ['--workdir=w', '--config.env.id=Pong-v5'],
      [],
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


def test_checks_come_before_tests(clone: Clone):
  assert clone.run('.ci/run', '--all', 'tests/envs') == 0
  calls = clone.calls()
  assert calls[0] == ['setup.sh', '--extras=test,video,craftax,jumanji']
  assert [call[2] for call in calls[1:]] == ['ruff', 'ruff', 'mypy', 'pytest']
  # Without the default's deselection.
  assert calls[-1][-5:-1] == ['-m', '', '-o', 'faulthandler_timeout=10800']
  assert calls[-1][-1] == 'tests/envs'
  clone.log.unlink()
  assert clone.run('.ci/run', fail_at='mypy') == 1
  assert len(clone.calls()) == 4


def test_the_oldest_dependencies_have_an_environment_of_their_own(clone: Clone):
  clone.add('bin/python3.11', _PRINTER)
  clone.add('.venv-oldest/bin/python', _PRINTER)
  assert clone.run('launch/test.sh', '--oldest', 'tests/envs') == 0
  setup, venv, pip, uv, pytest_call = clone.calls()
  assert setup == ['setup.sh', '--extras=test,video']
  # uv would keep what an environment has.
  assert venv == ['python3.11', '-m', 'venv', '--clear', 'ROOT/.venv-oldest']
  assert pip[1:4] == ['-m', 'pip', 'install'] and pip[-1] == 'uv'
  assert uv[1:4] == ['-m', 'uv', 'pip'] and '--resolution=lowest-direct' in uv
  assert '--python=ROOT/.venv-oldest/bin/python' in uv
  assert pytest_call[2] == 'pytest' and pytest_call[-1] == 'tests/envs'
