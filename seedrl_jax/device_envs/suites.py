"""Environments in JAX by name, `suite:name`."""

import functools
import importlib
import json
import types as types_lib

from seedrl_jax import types
from seedrl_jax.envs import registry


def load(config: types.Config) -> types.DeviceEnv:
  """Returns the environments of the `env` section of a config.

  Raises:
    ValueError: if there are none of that name, or an option is not theirs.
    registry.MissingLibraryError: if the suite is not installed.
  """
  options = json.dumps(config.options.to_dict(), sort_keys=True)
  return _load(config.id, options, tuple(config.drop_observations))


@functools.lru_cache(8)
def _load(
  env_id: str, options_json: str, dropped: tuple[str, ...]
) -> types.DeviceEnv:
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
  try:
    return module.make(name, flag, json.loads(options_json), dropped)
  except TypeError as e:
    raise ValueError(
      f'--config.env.options={options_json}: {env_id} cannot take them: {e}.'
    ) from e


def names(suite: str) -> list[str]:
  """Returns a suite's names; raises MissingLibraryError without it."""
  return _module(suite).names()


def _module(suite: str) -> types_lib.ModuleType:
  try:
    return importlib.import_module(f'{__package__}.{suite}_envs')
  except ImportError as e:
    raise registry.MissingLibraryError(
      f'--config.env.id={suite}:…: {str(e).rstrip(".")}; install it with '
      f'`pip install "seedrl-jax[{suite}]"`.'
    ) from e
