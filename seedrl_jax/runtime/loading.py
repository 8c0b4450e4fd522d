"""Loads the modules and functions that flags name. Imports no JAX.

They are installed or lie in the current folder.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any


def load_module(flag: str, name: str, hint: str = '') -> ModuleType:
  """Imports the module `name`.

  Raises:
    ValueError: if its import fails, or there is no such module; the message
      begins with `flag` and then ends with `hint`.
  """
  folder = os.getcwd()
  is_ours = name.partition('.')[0] == __name__.partition('.')[0]
  # Only for the user's modules, as the folder may be a stranger's. Last, so
  # that a file here hides no installed package.
  if not is_ours and folder not in sys.path:
    sys.path.append(folder)
  try:
    return importlib.import_module(name)
  except Exception as e:
    missing = e.name if isinstance(e, ModuleNotFoundError) else None
    if missing and f'{name}.'.startswith(f'{missing}.'):
      raise ValueError(
        f'{flag}: there is no module {name}, neither in the current folder '
        f'({folder}) nor among the installed packages{hint}.'
      ) from e
    place = traceback.extract_tb(e.__traceback__)[-1]
    raise ValueError(
      f'{flag}: the module {name} fails when it is imported: '
      f'{type(e).__name__}: {e} ({place.filename}, line {place.lineno}).'
    ) from e


def load_function(flag: str, reference: str) -> Callable[..., Any]:
  """Returns the callable that `reference`, 'module:function', names.

  Raises:
    ValueError: if there is none; the message begins with `flag`.
  """
  module, colon, name = reference.partition(':')
  if not (module and colon and name):
    raise ValueError(f'{flag}: must be module:function.')
  return find_function(flag, load_module(flag, module), name)


def find_function(
  flag: str, module: ModuleType, name: str
) -> Callable[..., Any]:
  """Returns a module's function; see `load_function`."""
  found = getattr(module, name, None)
  if not callable(found):
    file = getattr(module, '__file__', 'built in')
    raise ValueError(
      f'{flag}: the module {module.__name__} ({file}) has no function {name}.'
    )
  return found
