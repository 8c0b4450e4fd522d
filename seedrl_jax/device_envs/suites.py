"""Environments in JAX by name, `suite:name`."""

import functools
import importlib
import json
import types as types_lib
from typing import Any

import jax

from seedrl_jax import types
from seedrl_jax.envs import registry, specs


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
  options: dict[str, Any] = json.loads(options_json)
  defaults = module.defaults(name)
  for option in options:
    if option not in defaults:
      raise ValueError(
        f'--config.env.options.{option}: {env_id} has no such option; it has '
        f'{", ".join(sorted(defaults))}.'
      )
  return _drop(module.make(name, flag, options), dropped)


def _drop(env: types.DeviceEnv, dropped: tuple[str, ...]) -> types.DeviceEnv:
  """Returns environments without the keys that `env.drop_observations` has."""
  if not isinstance(env.spec.observation, dict):
    return env

  def keep(output: types.EnvOutput) -> types.EnvOutput:
    return output._replace(
      observation=specs.keep_keys(dropped, output.observation)
    )

  def init(key: jax.Array, n: int) -> tuple[types.Nest, types.EnvOutput]:
    state, output = env.init(key, n)
    return state, keep(output)

  def step(
    state: types.Nest, action: jax.Array
  ) -> tuple[types.Nest, types.EnvOutput]:
    state, output = env.step(state, action)
    return state, keep(output)

  observation = specs.keep_keys(dropped, env.spec.observation)
  spec = env.spec._replace(observation=observation)
  return types.DeviceEnv(spec, init, step)


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
