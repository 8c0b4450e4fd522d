"""Checks a configuration's values and loads the functions that they name.

Imports no JAX.
"""

import importlib
import math
import numbers
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Container, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.runtime import process

# Characters of an error's message in a sentence.
_LONGEST_MESSAGE = 500
# Most elements of a value, such as layers of a network.
_MOST = 1000
# Bounds far above what any run needs, so that an absurd number is one sentence
# rather than a machine without memory, or a compilation that never ends.
UNITS = 10**5  # of a layer
STEPS = 10**5  # of a sequence
COUNT = 10**6  # of environments, unrolls or pieces
LARGE = 10**9  # of what takes little memory, or takes it at once
# Steps of an evaluated episode, over nine hours of Atari: only one that never
# ends is as long.
EPISODE = 500_000


def make_config(values: Mapping[str, Any]) -> ml_collections.ConfigDict:
  """Returns a configuration of JSON values; ValueError if a key cannot be."""
  try:
    return ml_collections.ConfigDict(values)
  # For a key such as '__class__' or 'a.b'.
  except AttributeError as e:
    raise ValueError(str(e)) from e


class Allowed(NamedTuple):
  """A test of a key's values, and what to give instead as a sentence's end."""

  admits: Callable[[Any], bool]
  words: str


def _is_number(x: Any) -> bool:
  """Whether `x` is a number, perhaps not a finite one, that a float holds."""
  if isinstance(x, bool) or not isinstance(x, numbers.Real):
    return False
  try:
    float(x)
  except OverflowError:
    return False
  return True


def integer(least: float = -math.inf, most: float = math.inf) -> Allowed:
  """Allows whole numbers in a range, ends included."""
  inside = number(least, most)
  return Allowed(
    lambda x: isinstance(x, numbers.Integral) and inside.admits(x), inside.words
  )


def number(
  least: float = -math.inf, most: float = math.inf, below: float = math.inf
) -> Allowed:
  """Allows finite numbers from `least` to `most`, and less than `below`."""

  def admits(x: Any) -> bool:
    # NaN fails every comparison.
    is_inside = _is_number(x) and least <= x <= most and x < below
    return is_inside and math.isfinite(x)

  words = 'a number' if least == -math.inf else f'at least {least:,}'
  if most != math.inf:
    words = f'{least:,} to {most:,}'
  elif below != math.inf:
    words += f' and below {below:,}'
  return Allowed(admits, f'give {words}')


def one_of(*choices: str, or_function: bool = False) -> Allowed:
  """Allows `choices`, and any 'module:function' if `or_function`."""
  words = f'choose one of {choices}'
  if or_function:
    words += ", or give a function as 'module:function'"

  return Allowed(
    lambda x: (
      isinstance(x, str) and (x in choices or (or_function and ':' in x))
    ),
    words,
  )


def each(allowed: Allowed) -> Allowed:
  """Allows tuples whose elements are all allowed."""
  return Allowed(
    lambda x: (
      isinstance(x, (tuple, list))
      and len(x) <= _MOST
      and all(map(allowed.admits, x))
    ),
    f'{allowed.words} for each of at most {_MOST:,} in the parentheses',
  )


def optional(allowed: Allowed) -> Allowed:
  """Allows None, too."""
  return Allowed(
    lambda x: x is None or allowed.admits(x),
    f'{allowed.words}, or omit it',
  )


# A score: it may be infinite or NaN.
SCORE = Allowed(_is_number, 'give a number')
FLAG = Allowed(lambda x: isinstance(x, bool), 'give True or False')
TEXT = Allowed(lambda x: isinstance(x, str), 'give a string')
# A section whose keys the user chooses.
SECTION = Allowed(lambda x: hasattr(x, 'items'), "give {'name': value}")
# Longer waits overflow the system's time-outs.
SECONDS = number(0, 10**9)
_LAST_PROCESSOR = max(process.PROCESSORS)
PROCESSOR = integer(-1, _LAST_PROCESSOR)._replace(
  words=f"give a processor, up to this machine's {_LAST_PROCESSOR}, or -1"
)


def leaves(
  config: ml_collections.ConfigDict | Mapping[str, Any],
  whole: Container[str] = (),
  prefix: str = '',
) -> Iterator[tuple[str, Any]]:
  """Yields dotted keys and values; a section in `whole` is one value."""
  for name, value in config.items():
    key = prefix + name
    if hasattr(value, 'items') and key not in whole:
      yield from leaves(value, whole, f'{key}.')
    else:
      yield key, value


def check(
  config: ml_collections.ConfigDict,
  allowed: Mapping[str, Allowed],
  complete: bool = True,
) -> None:
  """Raises ValueError if a key of `allowed` is missing or has a wrong value.

  If `complete`, there must be no other keys.
  """
  check_values(config, allowed)
  values = dict(leaves(config, allowed))
  agent = f'--config.agent={config.get("agent")}'
  for key in allowed:
    if key not in values:
      raise ValueError(
        f'--config.{key} is missing, which {agent} needs; start from a '
        'configuration for that agent.'
        if 'agent' in values
        else f'--config.{key} is missing; start from a whole configuration.'
      )
  for key in values:
    if complete and key not in allowed:
      raise ValueError(
        f'--config.{key} means nothing to {agent}; take it out of the '
        'configuration, or start from one for that agent.'
      )


def check_values(
  config: ml_collections.ConfigDict, allowed: Mapping[str, Allowed]
) -> None:
  """Raises ValueError if a key of `allowed` has a value that is not allowed."""
  for key, value in leaves(config, allowed):
    start = f'--config.{key}={value!s:.99}'
    if key in allowed:
      if not allowed[key].admits(value):
        raise ValueError(f'{start}: {allowed[key].words}.')
    elif any(name.startswith(f'{key}.') for name in allowed):
      raise ValueError(f'{start}: this is a section; give its keys.')


def load_module(flag: str, name: str, hint: str = '') -> ModuleType:
  """Imports the module `name`, installed or in the current folder.

  Raises ValueError if it cannot; the message begins with `flag`, and ends with
  `hint` if there is no such module.
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
    raise ValueError(
      f'{flag}: the module {name} fails when it is imported: {error_text(e)}.'
    ) from e


def error_text(error: BaseException) -> str:
  """Returns an error and its place, as 'ValueError: text (file.py, line 1)'."""
  place = traceback.extract_tb(error.__traceback__)[-1]
  text = textwrap.shorten(str(error), _LONGEST_MESSAGE)
  return (
    f'{type(error).__name__}: {text} ({place.filename}, line {place.lineno})'
  )


def load_function(flag: str, reference: str) -> Callable[..., Any]:
  """Returns what 'module:function' names; raises ValueError about `flag`."""
  module, colon, name = reference.partition(':')
  if not (module and colon and name):
    raise ValueError(f'{flag}: must be module:function.')
  if not is_given(reference):
    return find_function(flag, load_module(flag, module), name)
  if name not in _functions:
    raise ValueError(
      f'{flag} was given from Python, and this process does not have it; give '
      'it again, by seedrl_jax.train(None, workdir, env=…) or '
      'seedrl_jax.evaluate(workdir, env=…), or start a new run with a function '
      'in a module.'
    )
  return _functions[name]


def find_function(
  flag: str, module: ModuleType, name: str
) -> Callable[..., Any]:
  """Returns a module's function; see `load_function`."""
  function = getattr(module, name, None)
  if not callable(function):
    file = getattr(module, '__file__', 'built in')
    raise ValueError(
      f'{flag}: the module {module.__name__} ({file}) has no function {name}.'
    )
  return function


# A notebook's cell, a script or a function has no importable module: what is
# defined there is 'python:name', and only this process knows it.
_PYTHON = 'python'
_functions: dict[str, Callable[..., Any]] = {}


def reference(function: Callable[..., Any]) -> str:
  """Returns the name of a function or class for `load_function`."""
  module = getattr(function, '__module__', '')
  name = getattr(function, '__qualname__', type(function).__qualname__)
  # Another process would import it from there, and a script has no such name.
  if module != '__main__' and (
    getattr(sys.modules.get(module), name, None) is function
  ):
    return f'{module}:{name}'
  name = re.sub(r'\W', '', name.rpartition('.')[2])
  _functions[name] = function
  return f'{_PYTHON}:{name}'


def is_given(name: str) -> bool:
  """Whether a reference is of a function that only its process knows."""
  return name.startswith(f'{_PYTHON}:')
