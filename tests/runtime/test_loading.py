"""Tests for seedrl_jax/runtime/loading.py."""

import pathlib
import sys
import types

import pytest

from seedrl_jax.agents import base
from seedrl_jax.agents.vtrace import agent as vtrace
from seedrl_jax.runtime import loading


@pytest.fixture(autouse=True)
def _folder(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
  """Changes to a user's folder; later forgets modules loaded from it."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'modules', {**sys.modules})
  return tmp_path


def _write(name: str, text: str) -> None:
  pathlib.Path(f'{name}.py').write_text(text)


def test_function_in_the_current_folder_is_found():
  _write('users_own', 'def make(x):\n  return x + 1\n')
  assert loading.load_function('--flag', 'users_own:make')(1) == 2


def test_agent_may_be_one_file_in_the_current_folder():
  _write('users_dqn', 'def make_agent(config, env_spec):\n  return env_spec\n')
  assert base.load_agent(types.SimpleNamespace(agent='users_dqn'), 7) == 7


def test_modules_of_the_package_do_not_open_the_folder_to_others():
  # Libraries would import files there, such as `tensorflow.py`.
  loading.load_module('--flag', vtrace.__name__)
  assert str(pathlib.Path.cwd()) not in sys.path


def test_agents_of_the_package_win_by_name():
  _write('vtrace', 'def make_agent(config, env_spec):\n  return env_spec\n')
  with pytest.raises(AttributeError):
    base.load_agent(types.SimpleNamespace(agent='vtrace'), None)


@pytest.mark.parametrize(
  ('reference', 'sentence'),
  [
    ('users_own', '--flag: must be module:function.'),
    (
      'absent:make',
      '--flag: there is no module absent, neither in the current folder '
      '({folder}) nor among the installed packages.',
    ),
    (
      'needs_more:make',
      '--flag: the module needs_more fails when it is imported: '
      "ModuleNotFoundError: No module named 'needs' "
      '({folder}/needs_more.py, line 2).',
    ),
    (
      'users_own:absent',
      '--flag: the module users_own ({folder}/users_own.py) has no function '
      'absent.',
    ),
    (
      'users_own:value',
      '--flag: the module users_own ({folder}/users_own.py) has no function '
      'value.',
    ),
  ],
)
def test_what_cannot_be_had_is_said_in_a_sentence(
  reference: str, sentence: str, tmp_path: pathlib.Path
):
  _write('users_own', 'value = 1\n')
  # The missing module's name begins as its own.
  _write('needs_more', '\nimport needs\n')
  with pytest.raises(ValueError) as caught:
    loading.load_function('--flag', reference)
  assert str(caught.value) == sentence.format(folder=tmp_path)
