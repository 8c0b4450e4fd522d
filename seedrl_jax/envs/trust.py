"""Whose code runs: what a configuration from elsewhere may ask for.

A learner tells its actors, and a work directory whoever plays its checkpoint,
which functions make environments, torsos and agents. Whoever is asked runs
those of this package, and others only if the own command line allows them.
Needs no JAX.
"""

import shlex
from collections.abc import Collection, Iterator, Mapping
from typing import Any

# All that this package has; tests compare these with its folders.
FACTORIES = (
  'seedrl_jax.envs.combination_lock:make',
  'seedrl_jax.envs.recall:make',
)
AGENTS = ('r2d2', 'vtrace')

FACTORY_FLAG, OPTION_FLAG = '--allow_factory', '--allow_option'


def flags_needed(config: Mapping[str, Any]) -> list[str]:
  """Returns the flags that allow what is not of this package.

  An agent counts as its module's `make_agent`. Of options for environments,
  text may name a program to start, as ViZDoom's `vzd_path` does.

  Args:
    config: a run's configuration, or parts of it, as plain dicts.
  """
  env, network = config.get('env', {}), config.get('network', {})
  return [
    *(f'{FACTORY_FLAG}={name}' for name in _functions(config, env, network)),
    *(f'{OPTION_FLAG}={option}' for option in _text_options(env)),
  ]


def check(
  config: Mapping[str, Any], allowed: Collection[str], asker: str
) -> None:
  """Checks that a configuration asks for nothing that is not allowed.

  Args:
    config: as of `flags_needed`.
    allowed: flags of the command line, as `flags_needed` has them.
    asker: who gave the configuration, to begin a sentence with.

  Raises:
    ValueError: names all that is not, and the flags that would allow it.
  """
  missing = [flag for flag in flags_needed(config) if flag not in allowed]
  if not missing:
    return
  wanted = ', '.join(_shown(flag.partition('=')[2]) for flag in missing)
  raise ValueError(
    f'{asker} asks for {wanted}, which could run code from outside of this '
    f'package; if you trust it, add {" ".join(map(_shown, missing))}.'
  )


def _functions(config: Any, env: Any, network: Any) -> Iterator[str]:
  factory = env.get('factory')
  if factory and factory not in FACTORIES:
    yield factory
  agent = config.get('agent')
  if agent is not None and agent not in AGENTS:
    yield f'{agent}:make_agent'
  torso = str(network.get('torso'))
  if ':' in torso or '.' in torso:
    yield torso


def _text_options(env: Any) -> Iterator[str]:
  for name, value in env.get('options', {}).items():
    if not _is_number(value):
      yield f'{name}={value}'


def _is_number(value: Any) -> bool:
  """Returns whether it is a number, None or a list of such."""
  if isinstance(value, (list, tuple)):
    return all(map(_is_number, value))
  return value is None or isinstance(value, (int, float))


def _shown(text: str) -> str:
  """Returns it for a shell, and without what would drive a terminal."""
  return shlex.quote(text.encode('unicode_escape').decode())
