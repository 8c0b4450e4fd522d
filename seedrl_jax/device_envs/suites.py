"""Environments in JAX by name, `suite:name`."""

import functools
import importlib
import json
import types as types_lib
from typing import Any

from seedrl_jax import types
from seedrl_jax.envs import registry


def load(config: types.Config) -> types.DeviceEnv:
  """Returns the environments of the `env` section of a config.

  Raises:
    ValueError: if there are none of that name, or an option is not theirs.
    registry.MissingLibraryError: if the suite is not installed.
  """
  return _load(config.id, json.dumps(config.options.to_dict(), sort_keys=True))


@functools.lru_cache(8)
def _load(env_id: str, options_json: str) -> types.DeviceEnv:
  suite, _, name = env_id.partition(':')
  module = _module(suite)
  flag = f'--config.env.id={env_id}'
  if name not in module.names():
    near = ', '.join(
      f'{suite}:{x}' for x in registry.nearest(name, module.names())
    )
    raise ValueError(
      f'{flag}: {suite} has no such environment; the nearest are {near}.'
    )
  options: dict[str, Any] = json.loads(options_json)
  known = module.defaults(name)
  for option in options:
    if option not in known:
      raise ValueError(
        f'--config.env.options.{option}: {env_id} has no such option; it has '
        f'{", ".join(sorted(known))}.'
      )
  return module.make(name, flag, options)


def _module(suite: str) -> types_lib.ModuleType:
  try:
    return importlib.import_module(f'{__package__}.{suite}_envs')
  except ImportError as e:
    raise registry.MissingLibraryError(
      f'--config.env.id={suite}:…: {str(e).rstrip(".")}; install it with '
      f'`pip install "seedrl-jax[{suite}]"`.'
    ) from e
