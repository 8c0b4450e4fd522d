"""Tests for environment.py with stand-ins for interpreters."""

import pathlib
import platform
import subprocess
import sys

import pytest

from seedrl_jax.replay.reverb.server import environment
from seedrl_jax.runtime import virtual_env

_MAKE = """
import sys
from seedrl_jax.replay.reverb.server import environment
print(environment.ensure(sys.argv[1], requirements=['some']))
"""


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
  monkeypatch.setenv('SEEDRL_CACHE', str(tmp_path / 'cache'))
  monkeypatch.delenv(environment.VARIABLE, raising=False)
  environment._probe.cache_clear()
  yield
  environment._probe.cache_clear()


@pytest.fixture(name='base')
def base_fixture(tmp_path) -> str:
  """A stand-in for a Python; pip in its venvs installs all but 'missing'."""
  made = _script(
    tmp_path / 'made',
    '[ "$3" = pip ] || exit 0\n'
    'for last; do :; done; echo "pip: $last"; [ "$last" != missing ]',
  )
  return _script(
    tmp_path / 'base',
    'if [ "$2" = -c ]; then echo \'["3.11.0", false]\'\n'
    f'else mkdir -p "$4/bin"; cp {made} "$4/bin/python"; fi',
  )


def _script(path: pathlib.Path, text: str) -> str:
  path.parent.mkdir(exist_ok=True)
  path.write_text(f'#!/bin/sh\n{text}\n')
  path.chmod(0o755)
  return str(path)


def _python(path: pathlib.Path, version: str, reverb='false'):
  """Makes an interpreter that reports these properties."""
  return _script(path, f'echo \'["{version}", {reverb}]\'')


@pytest.fixture(name='only')
def only_fixture(monkeypatch, tmp_path) -> pathlib.Path:
  """Returns the only folder on PATH; this Python is too new."""
  folder = tmp_path / 'bin'
  folder.mkdir()
  this = _python(tmp_path / 'this', '3.13.0')
  monkeypatch.setattr(sys, 'executable', this)
  monkeypatch.setenv('PATH', str(folder))
  return folder


def _in_process(base: str) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, '-c', _MAKE, base],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_made_once_and_then_only_found(base, monkeypatch, tmp_path):
  place = environment.recipe(environment.find(base), ['some']).folder
  (place / 'bin').mkdir(parents=True)
  # An older environment, whose interpreter was removed.
  (place / 'bin/python').symlink_to(tmp_path / 'gone')
  # Interrupted while it is made.
  with _in_process(base) as run:
    run.stderr.readline()
    run.kill()
  # Two first runs at once.
  runs = [_in_process(base) for _ in range(2)]
  results = [run.communicate() for run in runs]
  assert [run.returncode for run in runs] == [0, 0], results
  said = results[0][1] + results[1][1]
  assert said.count("making the server's environment") == 1
  assert not list((tmp_path / 'cache').glob('*.partial'))

  def refuse(*unused):
    raise AssertionError('nothing is to be installed')

  monkeypatch.setattr(virtual_env, '_build', refuse)
  python = environment.ensure(base, ['some'])
  assert [out.strip() for out, _ in results] == [python] * 2
  # Other requirements make another environment.
  with pytest.raises(AssertionError):
    environment.ensure(base, ['some', 'more'])


def test_a_failing_pip_is_told_with_its_log(base, tmp_path):
  with pytest.raises(environment.EnvironmentUnavailable) as error:
    environment.ensure(base, ['missing'])
  sentence = str(error.value)
  (log,) = (tmp_path / 'cache').glob('*.log')
  assert '"pip install" failed' in sentence and str(log) in sentence
  assert '--reverb_python' in sentence and '\n' not in sentence
  assert 'pip: missing' in log.read_text()
  assert not list((tmp_path / 'cache').glob('reverb-*/'))


def test_cache_that_cannot_be_written(base, tmp_path, monkeypatch):
  (tmp_path / 'file').touch()
  monkeypatch.setenv('SEEDRL_CACHE', str(tmp_path / 'file/cache'))
  with pytest.raises(
    environment.EnvironmentUnavailable, match='set SEEDRL_CACHE'
  ):
    environment.ensure(base, ['some'])


def test_other_platforms(monkeypatch):
  monkeypatch.setattr(platform, 'machine', lambda: 'aarch64')
  with pytest.raises(environment.NoReverb, match='backend=embedded'):
    environment.ensure()


def test_an_interpreter_with_reverb_is_used_as_it_is(only, tmp_path):
  path = _python(tmp_path / 'ready', '3.11.4', reverb='true')
  assert environment.ensure(path) == path
  assert not (tmp_path / 'cache').exists()


def test_the_order_of_interpreters(only, tmp_path, monkeypatch):
  _python(only / 'python3.9', '3.9.1')
  # A shim for a version that is not selected.
  _script(only / 'python3.11', 'echo not installed >&2; exit 127')
  newest = _python(only / 'python3.10', '3.10.1')
  assert environment.find().path == newest
  this = _python(only / 'this', '3.11.9')
  monkeypatch.setattr(sys, 'executable', this)
  assert environment.find().path == this
  variable = _python(tmp_path / 'variable', '3.11.1')
  monkeypatch.setenv(environment.VARIABLE, variable)
  assert environment.find('').path == variable
  flag = _python(tmp_path / 'flag', '3.9.1')
  assert environment.find(flag).path == flag


# Finds nothing until it has installed a Python.
_UV = """echo "$UV_HTTP_RETRIES" >NAME.retries
case "$1 $2 $3" in
"python find 3.11") [ -e NAME.done ] && echo PYTHON ;;
"python install 3.11") : >NAME.done ;;
*) exit 2 ;; esac"""


@pytest.mark.parametrize('place', ['bin/uv', 'uv'])
def test_uv_is_the_last_resort(only, tmp_path, place):
  made = _python(tmp_path / 'uv-python', '3.11.9')
  # On PATH, or beside this Python.
  text = _UV.replace('PYTHON', made).replace('NAME', str(tmp_path / 'uv'))
  _script(tmp_path / place, text)
  assert environment.find().path == made
  assert (tmp_path / 'uv.retries').read_text() == '1\n'
  other = _python(only / 'python3.9', '3.9.1')
  assert environment.find().path == other


@pytest.mark.parametrize(
  ('text', 'seconds', 'why'),
  [
    (None, 99, ''),
    ('echo error: no >&2; echo " cause: DNS." >&2; exit 1', 99, '(cause: DNS)'),
    ('exec /bin/sleep 600', 0.1, '(not within 0.1 s)'),
  ],
)
def test_no_interpreter_at_all(only, monkeypatch, text, seconds, why):
  monkeypatch.setattr(environment, '_UV_SECONDS', seconds)
  if text:
    _script(only / 'uv', f'[ "$2" = find ] && exit 1\n{text}')
    why = f'uv could not download one {why}: install'
  with pytest.raises(environment.NoReverb) as error:
    environment.find()
  sentence = str(error.value)
  assert 'Python from 3.9 to 3.11' in sentence and why in sentence
  assert '--reverb_python' in sentence and '\n' not in sentence


@pytest.mark.parametrize(
  ('text', 'words'),
  [
    ('echo \'["3.12.1", false]\'', 'Python 3.12.1'),
    ('echo \'["3.8.1", false]\'', 'Python 3.8.1'),
    ('exit 1', 'no Python that runs'),
    ('echo hello', 'no Python that runs'),
  ],
)
def test_named_interpreter_that_will_not_do(only, tmp_path, text, words):
  path = _script(tmp_path / 'named', text)
  with pytest.raises(
    environment.EnvironmentUnavailable,
    match=f'--reverb_python={path}: this is {words}, .* 3.9 to 3.11; name',
  ):
    environment.find(path)
