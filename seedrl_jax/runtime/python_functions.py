"""Functions and classes given from Python, where a configuration has names.

Those that a module has are named as 'module:function', like any other. A
notebook's cell, a script or a function has no importable module: what is
defined there is 'python:name', and only this process knows it.
"""

import re
import sys
from collections.abc import Callable
from typing import Any

MODULE = 'python'

_functions: dict[str, Callable[..., Any]] = {}


def reference(function: Callable[..., Any]) -> str:
  """Returns the name of a function or class, to be given to `find`."""
  module = getattr(function, '__module__', '')
  name = getattr(function, '__qualname__', type(function).__qualname__)
  # Another process would import it from there, and a script has no such name.
  if module != '__main__' and (
    getattr(sys.modules.get(module), name, None) is function
  ):
    return f'{module}:{name}'
  name = re.sub(r'\W', '', name.rpartition('.')[2])
  _functions[name] = function
  return f'{MODULE}:{name}'


def is_given(name: str) -> bool:
  """Whether a reference is of a function that only its process knows."""
  return name.startswith(f'{MODULE}:')


def find(flag: str, name: str) -> Callable[..., Any]:
  """Returns a function that this process was given.

  Raises ValueError, which begins with `flag`, if it was not.
  """
  function = _functions.get(name)
  if function is None:
    raise ValueError(
      f'{flag} was given from Python, and this process does not have it; give '
      'it again, by seedrl_jax.train(None, workdir, env=…) or '
      'seedrl_jax.evaluate(workdir, env=…), or start a new run with a function '
      'in a module.'
    )
  return function
