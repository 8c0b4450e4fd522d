"""Tests for launch/setup.sh on a host of stubs, without network or pip."""

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

import pytest

from tests.launch import stand_ins

_TABLE = 'seedrl_jax/envs/libraries.txt'
# All programs on PATH.
_TOOLS = (
  'bash',
  'cat',
  'cp',
  'cut',
  'dirname',
  'echo',
  'env',
  'flock',
  'grep',
  'mkdir',
  'readlink',
  'rm',
  'rmdir',
  'sed',
  'sha256sum',
  'sort',
  'tail',
  'touch',
  'tr',
  'true',
  'xargs',
)

# A Python 3.MINOR that lacks what FAKE_* variables say. Runs the script's
# snippets in the real interpreter, and only records calls of pip.
_FAKE_PYTHON = """#!/usr/bin/env bash
minor=MINOR
here=$(dirname "$0")
case "$*" in
  *'-m venv '*)
    mkdir -p "${@: -1}/bin"
    touch "${@: -1}/pyvenv.cfg"
    cp "$0" "${@: -1}/bin/python"
    exit "${FAKE_VENV_STATUS:-0}" ;;
  *'-m pip install '*)
    echo 'Collecting all'
    echo "${@: -1}" >>"$FAKE_LOG"
    printf '%s\n' "$@" >>"$FAKE_LOG.all"
    [[ ${FAKE_PIP_FIFO:-} ]] && read -r <"$FAKE_PIP_FIFO"
    [[ ${FAKE_PIP_STATUS:-0} == 0 ]] && touch "$here/installed"
    exit "${FAKE_PIP_STATUS:-0}" ;;
  *'import ensurepip'*)
    [[ -e $FAKE_LOG.apt || ! ${FAKE_NO_VENV:-} ]]; exit ;;
  *find_spec*) [[ -e $here/installed ]]; exit ;;
  *--version) echo "Python 3.$minor.0"; exit ;;
  *ctypes*)
    code=${@: -1}
    library=${code#*\\'}
    [[ -e $FAKE_LOG.apt || " ${FAKE_MISSING:-} " != *" ${library%\\'*} "* ]]
    exit ;;
esac
exec REAL -c "import sys
sys.version_info = (3, $minor, 0)
${@: -1}"
"""

# Records its calls; any package installs all.
_APT = """#!/usr/bin/env bash
echo "${0##*/} $*" >>"$FAKE_LOG.apt-calls"
[[ "$*" == *update ]] && exec lists-are-free
touch "$FAKE_LOG.apt"
exit "${FAKE_APT_STATUS:-0}"
"""


class Host:
  """A clone with only a test's stubs on PATH and in the environment."""

  def __init__(self, folder: pathlib.Path):
    self.clone = folder / 'clone'
    self.venv = self.clone / '.venv'
    self.bin = folder / 'bin'
    self.log = folder / 'pip.log'
    self.bin.mkdir()
    for name in ('launch/setup.sh', 'pyproject.toml', _TABLE):
      (self.clone / name).parent.mkdir(parents=True, exist_ok=True)
      shutil.copy(stand_ins.ROOT / name, self.clone / name)
    for tool in _TOOLS:
      path = shutil.which(tool)
      assert path, tool
      (self.bin / tool).symlink_to(path)
    # An unprivileged user; tests of extras need no packages.
    self.add('id', '#!/bin/sh\necho 1000\n')
    for name in ('git', 'openssl', 'lists-are-free'):
      self.add(name, '#!/bin/sh\n')

  def add(self, name: str, script: str) -> None:
    stand_ins.add_program(self.bin, name, script)

  def add_python(self, name: str, minor: int) -> None:
    script = _FAKE_PYTHON.replace('MINOR', str(minor), 1)
    self.add(name, script.replace('REAL', sys.executable))

  def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
    fixed = {'PATH': str(self.bin), 'FAKE_LOG': str(self.log)}
    return subprocess.Popen(
      [str(self.clone / 'launch/setup.sh'), *arguments],
      env=fixed | env,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def setup(self, *arguments: str, **env: str) -> None:
    """Runs the script, which must succeed."""
    process = self.start(*arguments, **env)
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr

  def refusal(self, *arguments: str, **env: str) -> str:
    """Runs the script, which must fail; returns its last line."""
    process = self.start(*arguments, **env)
    _, stderr = process.communicate()
    assert process.returncode != 0
    return stderr.splitlines()[-1]

  def installs(self) -> list[str]:
    """Extras of each pip call so far, as `[a,b]`."""
    calls = self.log.read_text().splitlines() if self.log.exists() else []
    return [call.removeprefix(str(self.clone)) for call in calls]


@pytest.fixture(name='host')
def _host(tmp_path: pathlib.Path) -> Host:
  host = Host(tmp_path)
  host.add_python('python3', 11)
  return host


@pytest.mark.parametrize(
  ('calls', 'installs'),
  [
    ([[], []], ['']),
    (
      [['--extras=video'], ['--extras=test'], [], ['--extras=test,video']],
      ['[video]', '[test,video]'],
    ),
    # The last requirement of one pip call, and the package of the other.
    ([['--actor'], ['--actor']], ['numpy>=2.0', '']),
    ([['--actor'], []], ['numpy>=2.0', '', '']),
  ],
)
def test_extras_add_up_and_nothing_is_installed_twice(
  host: Host, calls: list[list[str]], installs: list[str]
):
  for arguments in calls:
    host.setup(*arguments)
  assert host.installs() == installs


def test_changed_project_is_installed_again(host: Host):
  host.setup('--extras=test')
  with (host.clone / 'pyproject.toml').open('a') as f:
    f.write('\n# changed\n')
  host.setup()
  assert host.installs() == ['[test]', '[test]']


# Commands that break an environment, in its folder.
_DAMAGES = (
  'echo "#!/nowhere/python" >bin/python',
  'rm bin/installed',
  'rm -r bin pyvenv.cfg .seedrl-stamp pip.log',
)


@pytest.mark.parametrize('damage', _DAMAGES)
def test_broken_environment_is_repaired(host: Host, damage: str):
  host.setup()
  subprocess.run(['bash', '-c', damage], cwd=host.venv, check=True)
  host.setup()
  assert host.installs() == ['', '']
  host.setup()
  assert host.installs() == ['', '']


def test_interrupted_installation_is_continued(host: Host):
  assert 'pip failed' in host.refusal('--extras=test', FAKE_PIP_STATUS='1')
  host.setup()
  host.setup()
  assert host.installs() == ['[test]', '[test]']


@pytest.mark.parametrize('status', [0, 1])
def test_pips_output_is_in_its_log_and_shown_if_it_fails(
  host: Host, status: int
):
  process = host.start(FAKE_PIP_STATUS=str(status))
  out, err = process.communicate()
  log = host.venv / 'pip.log'
  assert log.read_text() == 'Collecting all\n'
  assert out.count(f'log: {log}') == 1 and 'Collecting' not in out
  shown = [
    'Collecting all',
    f'setup: pip failed, see above and {log}; run this again to continue.',
  ]
  assert err.splitlines() == shown * status


def test_foreign_folder_is_left_alone(host: Host):
  host.venv.mkdir()
  (host.venv / 'thesis.tex').write_text('years of work')
  assert 'no virtual environment; move it away' in host.refusal()
  assert (host.venv / 'thesis.tex').read_text() == 'years of work'


def test_second_of_two_at_once_waits_and_finds_it_made(host: Host):
  fifo = host.clone / 'fifo'
  os.mkfifo(fifo)
  # Open for both, it keeps what is written until the first run's pip reads it.
  descriptor = os.open(fifo, os.O_RDWR)
  first = host.start(FAKE_PIP_FIFO=str(fifo))
  assert first.stdout is not None
  assert any('installing' in line for line in iter(first.stdout.readline, ''))
  second = host.start()
  assert second.stdout is not None
  assert 'waiting for another' in second.stdout.readline()
  os.write(descriptor, b'go on\n')
  for process in (first, second):
    _, stderr = process.communicate()
    assert process.returncode == 0, stderr
  os.close(descriptor)
  assert host.installs() == ['']


def test_given_python_is_taken_and_another_remakes(host: Host):
  host.add_python('python3.12', 12)
  host.add_python('python3.13', 13)
  # By default the newest.
  elsewhere = host.clone / 'some where' / 'venv'
  for name, minor in (('', 13), ('python3', 11), ('', 11), ('python3.12', 12)):
    env = {'SEEDRL_PYTHON': name} if name else {}
    host.setup(SEEDRL_VENV=str(elsewhere), **env)
    assert f'minor={minor}' in (elsewhere / 'bin/python').read_text()
  assert not host.venv.exists()
  assert host.installs() == ['', '', '']


@pytest.mark.parametrize(
  ('change', 'env', 'packages'),
  [
    (
      lambda host: host.add_python('python3', 10),
      {},
      'python3.11 python3.11-venv',
    ),
    (
      lambda host: (host.bin / 'git').unlink(),
      {'FAKE_NO_VENV': '1', 'FAKE_MISSING': 'libEGL.so.1 libOpenGL.so.0'},
      'python3.11-venv libegl1 libopengl0 git',
    ),
  ],
)
def test_all_that_is_missing_is_one_command(
  host: Host,
  change: Callable[[Host], object],
  env: Mapping[str, str],
  packages: str,
):
  change(host)
  extras = ['--extras=test'] if packages.endswith('git') else []
  assert host.refusal(*extras, **env) == (
    f'setup: there is no apt-get; install what Debian calls {packages}.'
  )
  host.add('apt-get', _APT)
  assert host.refusal(*extras, **env) == (
    'setup: install what is missing with: '
    f'sudo apt-get install --yes {packages}'
  )
  assert host.installs() == []


_SUDO = '#!/bin/sh\n[ "$1" = -n ] && shift && exec "$@"\n'


@pytest.mark.parametrize(
  ('name', 'script'), [('id', '#!/bin/sh\necho 0\n'), ('sudo', _SUDO)]
)
def test_what_is_missing_is_installed(host: Host, name: str, script: str):
  host.add('apt-get', _APT)
  host.add(name, script)
  # Waits while another process updates the lists.
  host.add(
    'lists-are-free',
    '#!/bin/sh\n[ -e "$FAKE_LOG.slept" ] && exit\n'
    'echo E: Could not get lock lists >&2\nexit 100\n',
  )
  host.add('sleep', '#!/bin/sh\n: >"$FAKE_LOG.slept"\n')
  missing = {'FAKE_NO_VENV': '1', 'FAKE_MISSING': 'libEGL.so.1'}
  host.setup(**missing)
  calls = pathlib.Path(f'{host.log}.apt-calls').read_text().splitlines()
  assert [call.split()[-1] for call in calls[:2]] == ['update', 'update']
  assert 'DPkg::Lock::Timeout=' in calls[2]
  assert calls[2].endswith(
    'install --yes --no-install-recommends python3.11-venv libegl1'
  )
  assert host.installs() == ['']
  host.setup(**missing)
  assert host.installs() == ['']


@pytest.mark.parametrize(
  ('driver', 'capability', 'env', 'expected'),
  [
    ('580.65.06\n580.65.06', '7.5\n10.0', {}, '[cuda13]'),
    ('580.65.06\n580.65.06', '8.0\n7.0', {}, '[cuda12]'),
    ('550.54', '9.0', {}, '[cuda12]'),
    ('470.82', '9.0', {}, ''),
    ('590.48.01', '9.0', {'SEEDRL_ACCELERATOR': 'cuda12'}, '[cuda12]'),
  ],
)
def test_driver_and_cards_choose_the_extra(
  host: Host,
  driver: str,
  capability: str,
  env: Mapping[str, str],
  expected: str,
):
  host.add(
    'nvidia-smi',
    f'#!/usr/bin/env bash\n[[ $1 == *compute_cap ]] && echo "{capability}" ||\n'
    f'  echo "{driver}"\n',
  )
  host.setup(**env)
  host.setup(**env)
  assert host.installs() == [expected]


@pytest.mark.parametrize(
  ('arguments', 'env', 'sentence'),
  [
    (['--extras=tset'], {}, '--extras=tset: pyproject.toml has no such extra'),
    (['--quick'], {}, '--quick is not an option'),
    (['--actor', '--extras=test'], {}, 'give --actor or --extras, not both'),
    ([], {'SEEDRL_PYTHON': '/no'}, 'SEEDRL_PYTHON=/no is not'),
    ([], {'SEEDRL_ACCELERATOR': 'npu'}, 'is none of auto, cpu, cuda12,'),
  ],
)
def test_bad_argument_is_refused_before_anything_is_made(
  host: Host, arguments: list[str], env: Mapping[str, str], sentence: str
):
  assert sentence in host.refusal(*arguments, **env)
  assert not host.venv.exists()
