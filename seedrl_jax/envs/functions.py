"""Finds functions of the user's own, which flags name as `module:function`.

Called by `gymnasium_stream` for environments and by `recording` for policies.
"""

import importlib
from collections.abc import Callable
from typing import Any


def check_reference(flag: str, reference: str) -> tuple[str, str]:
  """Returns the names of module and function.

  Args:
    flag: the whole flag, for messages.
    reference: `module:function`.

  Raises:
    ValueError: where it is not of that form.
  """
  module, colon, function = reference.partition(':')
  if not (module and colon and function):
    raise ValueError(f'{flag}: must be module:function.')
  return module, function


def load_function(flag: str, reference: str) -> Callable[..., Any]:
  """Returns the function; arguments as of `check_reference`.

  Raises:
    ValueError: where there is none; one sentence.
  """
  module_name, name = check_reference(flag, reference)
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as e:
    if e.name is None or not module_name.startswith(e.name):
      raise
    raise ValueError(f'{flag}: there is no module {module_name}.') from e
  function = getattr(module, name, None)
  if not callable(function):
    raise ValueError(f'{flag}: {module_name} has no function {name}.')
  return function
