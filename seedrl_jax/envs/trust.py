"""Which code a configuration from elsewhere may run.

Learners send actors, and work directories contain, names of functions that make
environments, torsos and agents. Only those of this package run unless the
command line allows others. Needs no JAX.
"""

import pathlib
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from seedrl_jax.runtime import settings

# All that this package has; a test looks for other factories.
FACTORIES = (
  'seedrl_jax.envs.combination_lock:make',
  'seedrl_jax.envs.recall:make',
)
_FOLDER = pathlib.Path(__file__).parents[1] / 'agents'
AGENTS = tuple(sorted(x.parent.name for x in _FOLDER.glob('*/agent.py')))

FACTORY_FLAG, OPTION_FLAG = '--allow_factory', '--allow_option'


def flags_needed(config: Mapping[str, Any]) -> list[str]:
  """Returns the flags that allow what is not of this package.

  An agent counts as its module's `make_agent`. Text among environment options
  needs a flag, as it may name a program to start (ViZDoom's `vzd_path`).
  """
  env = config.get('env', {})
  functions = []
  factory = env.get('factory')
  # Only this process's own code gives a function from Python.
  is_foreign = factory and not settings.is_given(factory)
  if is_foreign and factory not in FACTORIES:
    functions.append(factory)
  agent = config.get('agent')
  if agent is not None and agent not in AGENTS:
    functions.append(f'{agent}:make_agent')
  torso = str(config.get('network', {}).get('torso'))
  if ':' in torso or '.' in torso:
    functions.append(torso)
  options = env.get('options', {}).items()
  return [
    *(f'{FACTORY_FLAG}={name}' for name in functions),
    *(f'{OPTION_FLAG}={k}={v}' for k, v in options if not _is_number(v)),
  ]


def check(
  config: Mapping[str, Any], allowed: Collection[str], asker: str
) -> None:
  """Checks that all `flags_needed` are allowed; `asker` begins the message.

  Raises ValueError if flags are missing; names all of them.
  """
  missing = [flag for flag in flags_needed(config) if flag not in allowed]
  if not missing:
    return
  names = ', '.join(_printable(flag.partition('=')[2]) for flag in missing)
  raise ValueError(
    f'{asker} asks for {names}, which could run code from outside of this '
    f'package; if you trust it, add {" ".join(map(_printable, missing))}.'
  )


def _is_number(value: Any) -> bool:
  if isinstance(value, (list, tuple)):
    return all(map(_is_number, value))
  return value is None or isinstance(value, (int, float))


def _printable(text: str) -> str:
  """Returns text quoted for a shell, without terminal control characters."""
  return shlex.quote(text.encode('unicode_escape').decode())
