"""Tests for seedrl_jax/runtime/python_functions.py."""

import functools

import pytest

from seedrl_jax.runtime import python_functions, settings


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
  reference = python_functions.reference(function)
  assert reference == name
  if not name.startswith(__name__):
    assert settings.load_function('--flag', reference) is function


def test_another_process_lacks_it():
  with pytest.raises(ValueError, match='--flag was given from Python, and th'):
    settings.load_function('--flag', 'python:other')
