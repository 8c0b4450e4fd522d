"""Tests for seedrl_jax/runtime/settings.py."""

import functools
import math
import pathlib
import re
import sys
import types
from collections.abc import Callable

import ml_collections
import pytest

from seedrl_jax.agents import base
from seedrl_jax.agents.vtrace import agent as vtrace
from seedrl_jax.runtime import settings
from seedrl_jax.types import EnvSpec, StreamSpec, discrete


def _config(**values):
  return ml_collections.ConfigDict({'agent': 'a', **values})


@pytest.mark.parametrize(
  ('allowed', 'good', 'bad', 'words'),
  [
    (settings.integer(3), [3, 10**30], [2, 3.0, True, '3', None], 'at least 3'),
    (settings.integer(), [-5], [10**400, -(10**400)], 'give a number'),
    (settings.integer(0, 2), [0, 2], [-1, 3], 'give 0 to 2'),
    (settings.integer(1, 10**4), [1], [10**9], 'give 1 to 10,000'),
    (settings.number(0, 2.5), [0, 2.5], [-0.1, 2.6, math.nan], 'give 0 to 2.5'),
    (settings.number(0, below=1), [0, 0.9], [1, -1], 'at least 0 and below 1'),
    (settings.number(0), [0, 1e300], [math.inf, False], 'give at least 0'),
    (settings.number(), [-5.5], [math.nan, -math.inf], 'give a number'),
    (settings.one_of('a', 'b'), ['a'], ['c', 'm:f', None], "one of ('a', 'b')"),
    (settings.one_of('a', or_function=True), ['a', 'm:f'], ['b'], 'function'),
    (
      settings.each(settings.integer(1)),
      [(), (1, 2), [1]],
      [(0,), 1, (1,) * 1001],
      'each',
    ),
    (settings.optional(settings.FLAG), [None, True], [0], 'or omit it'),
    (settings.SCORE, [1, math.nan, -math.inf], [10**400, True, 'x'], 'number'),
    (settings.FLAG, [True, False], [1, 'True', None], 'give True or False'),
    (settings.TEXT, ['', 'x'], [None, 1], 'give a string'),
    (settings.SECTION, [{}], [None, 'x', ()], "give {'name': value}"),
  ],
)
def test_what_is_allowed(allowed, good, bad, words):
  assert words in allowed.words
  assert [x for x in good if not allowed.admits(x)] == []
  assert [x for x in bad if allowed.admits(x)] == []


@pytest.mark.parametrize(
  ('values', 'sentence'),
  [
    ({'s': {'x': -1}, 'free': {}}, '--config.s.x=-1: give at least 0.'),
    ({'free': {}}, '--config.s.x is missing, which --config.agent=a needs; '),
    ({'s': 5, 'free': {}}, '--config.s=5: this is a section; give its keys.'),
    ({'s': {'x': 1, 'y': 1}, 'free': {}}, '--config.s.y means nothing to '),
  ],
)
def test_says_in_a_sentence_what_is_wrong(values, sentence):
  ranges = {
    'agent': settings.TEXT,
    's.x': settings.integer(0),
    'free': settings.SECTION,
  }
  with pytest.raises(ValueError, match=f'^{re.escape(sentence)}'):
    settings.check(_config(**values), ranges)
  settings.check(_config(s={'x': 1}, free={'any': 1}), ranges)
  settings.check(_config(s={'x': 1, 'y': 1}, free={}), ranges, complete=False)


@pytest.fixture(name='write')
def write_fixture(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str], int]:
  """Changes to a user's folder; returns what writes modules there."""
  monkeypatch.chdir(tmp_path)
  # Forgets the modules afterwards.
  monkeypatch.setattr(sys, 'path', [*sys.path])
  monkeypatch.setattr(sys, 'modules', {**sys.modules})
  return lambda name, text: (tmp_path / f'{name}.py').write_text(text)


def test_function_in_the_current_folder_is_found(write):
  write('users_own', 'def make(x):\n  return x + 1\n')
  assert settings.load_function('--flag', 'users_own:make')(1) == 2


def test_agent_may_be_one_file_in_the_current_folder(write):
  text = 'def make_agent(config, env_spec):\n  return env_spec\n'
  write('users_dqn', text)
  spec = EnvSpec(StreamSpec(None, discrete(2), 1, ''), 1, 0)
  assert base.load_agent(types.SimpleNamespace(agent='users_dqn'), spec) is spec
  # Those of the package win by name.
  write('vtrace', text)
  with pytest.raises(AttributeError):
    base.load_agent(types.SimpleNamespace(agent='vtrace'), spec)


@pytest.mark.usefixtures('write')
def test_modules_of_the_package_do_not_open_the_folder_to_others():
  # Libraries would import files there, such as `tensorflow.py`.
  settings.load_module('--flag', vtrace.__name__)
  assert str(pathlib.Path.cwd()) not in sys.path


@pytest.mark.parametrize(
  ('reference', 'sentence'),
  [
    ('users_own', 'must be module:function.'),
    (
      'absent:make',
      'there is no module absent, neither in the current folder ({folder}) nor '
      'among the installed packages.',
    ),
    (
      'needs_more:make',
      'the module needs_more fails when it is imported: ModuleNotFoundError: '
      "No module named 'needs' ({folder}/needs_more.py, line 2).",
    ),
    (
      'users_own:value',
      'the module users_own ({folder}/users_own.py) has no function value.',
    ),
  ],
)
def test_what_cannot_be_had_is_said_in_a_sentence(
  write, reference, sentence, tmp_path
):
  write('users_own', 'value = 1\n')
  # The missing module's name begins as its own.
  write('needs_more', '\nimport needs\n')
  with pytest.raises(ValueError) as caught:
    settings.load_function('--flag', reference)
  assert str(caught.value) == '--flag: ' + sentence.format(folder=tmp_path)


class Nested:
  class Inner:
    pass


@pytest.mark.parametrize(
  ('function', 'name'),
  [
    (Nested, f'{__name__}:Nested'),
    (settings.leaves, 'seedrl_jax.runtime.settings:leaves'),
    (Nested.Inner, 'python:Inner'),
    (lambda: 7, 'python:lambda'),
    (functools.partial(int, 'x'), 'python:partial'),
  ],
)
def test_names_what_a_module_has_and_keeps_the_rest(function, name):
  reference = settings.reference(function)
  assert reference == name
  if not name.startswith(__name__):
    assert settings.load_function('--flag', reference) is function


def test_another_process_lacks_it():
  with pytest.raises(ValueError, match='--flag was given from Python, and th'):
    settings.load_function('--flag', 'python:other')
