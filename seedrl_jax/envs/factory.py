"""Makes streams of local environments, and their specs.

They are of EnvPool or Gymnasium, or in JAX.
"""

import functools
import importlib
import json
from collections.abc import Callable
from typing import Any

from seedrl_jax import types
from seedrl_jax.envs import (
  action_masks,
  base,
  env_thread,
  envpool_stream,
  gymnasium_envs,
  gymnasium_stream,
  keys,
  registry,
  specs,
)
from seedrl_jax.runtime import settings

# Of environments in JAX, `suite:name`.
SUITES = ('gymnax', 'craftax', 'jumanji')
# What such environments heed of the section `env`, or need not heed.
_HEEDED = {
  'id',
  'factory',
  'factory_kwargs',
  'options',
  'num_envs',
  'drop_observations',
  'action_mask',
  'compiled',
}


def device_env(config: types.Config) -> types.DeviceEnv | None:
  """Returns the environments of an `env` section if they are in JAX.

  Raises:
    ValueError: if they cannot be made, or do not heed a key that is set.
    registry.MissingLibraryError: if the suite is not installed.
  """
  env = _device_env(config)
  return env and env._replace(spec=action_masks.with_mask(config, env.spec))


def _device_env(config: types.Config) -> types.DeviceEnv | None:
  if config.factory:
    flag = gymnasium_envs.flag_of(config)
    function = settings.load_function(flag, config.factory)
    return _of_factory(function, config.factory_kwargs.to_json())
  if config.id.partition(':')[0] not in SUITES:
    return None
  for name, value in config.items():
    default = getattr(keys.KEYS.get(f'env.{name}'), 'default', value)
    if name not in _HEEDED and value != default:
      raise ValueError(
        f'--config.env.{name}={value}: has no effect on {config.id}, which is '
        f'in JAX; leave it at {default}.'
      )
  # By name, as the others need no JAX.
  return importlib.import_module('seedrl_jax.device_envs.suites').load(config)


def compiled_env(config: types.Config) -> types.DeviceEnv:
  """Returns EnvPool's environments for a program; see `can_compile`."""
  return importlib.import_module('seedrl_jax.device_envs.envpool_envs').load(
    config
  )


def can_compile(config: types.Config) -> bool:
  """Returns whether `compiled_env` can make the environments."""
  is_envpool = not (config.factory or ':' in config.id)
  return is_envpool and envpool_stream.can_compile(config)


@functools.lru_cache(8)
def _of_factory(
  function: Callable[..., Any], kwargs_json: str
) -> types.DeviceEnv | None:
  """Returns what a factory makes if that is in JAX."""

  def call() -> types.DeviceEnv | None:
    with registry.quiet_spaces():
      env = function(**json.loads(kwargs_json))
    if isinstance(env, types.DeviceEnv):
      return env
    env.close()
    return None

  try:
    return env_thread.call_in_thread('describe-factory', call)
  except Exception:
    # `gymnasium_envs` says what is wrong.
    return None


def is_gymnasium(config: types.Config) -> bool:
  """Returns whether Gymnasium makes the environments."""
  if config.factory:
    return device_env(config) is None
  return config.id.startswith(gymnasium_envs.PREFIX)


def is_cheap(config: types.Config) -> bool:
  """Returns whether a step takes microseconds, far less than an inference."""
  is_envpool = not (config.factory or ':' in config.id)
  return is_envpool and registry.is_cheap(config.id)


def make_spec(config: types.Config) -> types.StreamSpec:
  """Returns the spec of the environment in the `env` section of a config.

  Raises:
    ValueError: if the config is invalid; names the flag.
    registry.MissingLibraryError: if EnvPool cannot be loaded.
  """
  if env := device_env(config):
    return env.spec
  if is_gymnasium(config):
    return specs.joined_spec(gymnasium_envs.describe(config).spec)
  return envpool_stream.make_spec(config)


def make_env_spec(config: types.Config, num_hosts: int = 1) -> types.EnvSpec:
  """Returns the spec of all environments of a run on all hosts.

  Raises what `make_spec` does.
  """
  num_train = config.env.num_envs + config.actors.max_envs
  return types.EnvSpec(
    make_spec(config.env), num_hosts * num_train, config.num_eval_envs
  )


def make_stream(
  config: types.Config,
  seed: int,
  num_envs: int,
  batch_size: int,
  num_streams: int = 1,
  rendered: bool = False,
) -> base.LocalStream:
  """Makes the configured environments and resets them.

  Args:
    config: the `env` section; its `num_envs` and `batch_size` are of all
      streams together and not read.
    seed: environment i is seeded with `seed + i`: keep the seeds of streams at
      least `num_envs` apart.
    num_envs: environments of this stream.
    batch_size: environments per `recv`. If fewer than `num_envs`, the others
      step meanwhile.
    num_streams: streams that share this process's cores if `config.num_threads`
      is 0; cheap families of EnvPool then get one or two threads.
    rendered: let `LocalStream.render` draw them, if they can be drawn.

  Raises what `make_spec` does.
  """
  if env := device_env(config):
    stream = importlib.import_module('seedrl_jax.device_envs.stream')
    return stream.DeviceEnvStream(env, seed, num_envs)
  if is_gymnasium(config):
    return gymnasium_stream.GymnasiumStream(
      config, seed, num_envs, batch_size, rendered
    )
  if config.processes:
    raise ValueError(
      f'--config.env.processes={config.processes}: is for environments of '
      f'Gymnasium; {config.id} is of EnvPool, which has threads '
      '(--config.env.num_threads).'
    )
  return envpool_stream.EnvPoolStream(
    config, seed, num_envs, batch_size, num_streams, rendered
  )
