"""Tests for seedrl_jax/envs/trust.py: what needs which flag."""

import importlib
import pathlib
from typing import Any

import pytest

from seedrl_jax import agents, envs
from seedrl_jax.envs import trust


@pytest.mark.parametrize(
  'config, flags',
  [
    ({}, []),
    ({'env': {'factory': ''}, 'network': {'torso': 'resnet'}}, []),
    ({'env': {'factory': trust.FACTORIES[0]}, 'agent': 'r2d2'}, []),
    ({'env': {'options': {'a': 1, 'b': [0.5, [True]], 'c': None}}}, []),
    ({'env': {'factory': 'os:system'}}, ['--allow_factory=os:system']),
    # Compares the whole name, not a prefix.
    (
      {'env': {'factory': 'seedrl_jax.envs.recall:np.load'}},
      ['--allow_factory=seedrl_jax.envs.recall:np.load'],
    ),
    ({'agent': 'mydqn'}, ['--allow_factory=mydqn:make_agent']),
    ({'agent': ''}, ['--allow_factory=:make_agent']),
    ({'network': {'torso': 'my.torsos:f'}}, ['--allow_factory=my.torsos:f']),
    ({'env': {'options': {'vzd_path': 'x'}}}, ['--allow_option=vzd_path=x']),
  ],
)
def test_what_needs_a_flag(config: dict[str, Any], flags: list[str]):
  needed = trust.flags_needed(config)
  assert needed == flags
  trust.check(config, needed, 'x')


def test_a_refusal_names_all_flags_that_are_missing():
  config = {
    'env': {'factory': 'a:b', 'options': {'x': '\x1b[2J; y'}},
    'agent': 'c.d',
  }
  with pytest.raises(ValueError) as caught:
    trust.check(config, ['--allow_factory=a:b'], 'the learner')
  assert str(caught.value) == (
    "the learner asks for c.d:make_agent, 'x=\\x1b[2J; y', which could run "
    'code from outside of this package; if you trust it, add '
    "--allow_factory=c.d:make_agent '--allow_option=x=\\x1b[2J; y'."
  )


def test_all_that_the_package_has_is_listed():
  (folder,) = agents.__path__
  names = {p.name for p in pathlib.Path(folder).glob('*/') if p.name[0] != '_'}
  assert names == set(trust.AGENTS)
  (folder,) = envs.__path__
  modules = {
    f'{envs.__name__}.{p.stem}' for p in pathlib.Path(folder).glob('*.py')
  }
  assert set(trust.FACTORIES) == {
    f'{name}:make'
    for name in modules
    if hasattr(importlib.import_module(name), 'make')
  }
