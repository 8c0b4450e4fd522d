"""Makes single Gymnasium environments from the `env` section of a config."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import ml_collections
from gymnasium.envs import registration

from seedrl_jax.envs import options, registry
from seedrl_jax.runtime import settings

EnvFactory = Callable[[], gymnasium.Env]

_PREFIX = 'gymnasium:'


def is_gymnasium(config: ml_collections.ConfigDict) -> bool:
  """Returns whether Gymnasium, not EnvPool, makes the environments."""
  return bool(config.factory) or config.id.startswith(_PREFIX)


def env_flag(config: ml_collections.ConfigDict) -> str:
  """Returns the flag that names the environment, with its value."""
  if config.factory:
    return f'--config.env.factory={config.factory}'
  return f'--config.env.id={config.id}'


def name(config: ml_collections.ConfigDict, env: gymnasium.Env) -> str:
  """Returns the environment's name for curves and messages.

  For a factory, that is the id that Gymnasium gave, else the factory's name.
  """
  if not config.factory:
    return config.id
  return env.spec.id if env.spec is not None else config.factory


def load_factory(
  config: ml_collections.ConfigDict, rendered: bool = False
) -> EnvFactory:
  """Returns a picklable function that makes one environment.

  `rendered` passes `render_mode='rgb_array'`, if the factory takes it.

  Raises:
    ValueError: if there is no such function or id, or options are wrong.
  """
  if config.factory:
    return _of_factory(config, rendered)
  return _of_id(config, rendered)


def _of_factory(
  config: ml_collections.ConfigDict, rendered: bool
) -> EnvFactory:
  if given := [*options.set_options(config), *config.options]:
    raise ValueError(
      f'--config.env.{given[0]}: is an option of EnvPool, which '
      f'{env_flag(config)} replaces; give it in --config.env.factory_kwargs.'
    )
  kwargs = config.factory_kwargs.to_dict()
  function = settings.load_function(env_flag(config), config.factory)
  if rendered and _takes_render_mode(function):
    kwargs['render_mode'] = 'rgb_array'
  return functools.partial(_call, env_flag(config), config.factory, kwargs)


def _call(flag: str, reference: str, kwargs: dict[str, Any]) -> gymnasium.Env:
  # Load by name: the function need not be picklable.
  return settings.load_function(flag, reference)(**kwargs)


def _takes_render_mode(function: Callable[..., Any]) -> bool:
  parameters = inspect.signature(function).parameters.values()
  return any(
    p.name == 'render_mode' or p.kind == p.VAR_KEYWORD for p in parameters
  )


def _of_id(config: ml_collections.ConfigDict, rendered: bool) -> EnvFactory:
  env_id = config.id.removeprefix(_PREFIX)
  # Gymnasium imports the module that an id names, and so do its adapters to old
  # Gym; but the id may come from an untrusted learner.
  known = [key for key in registration.registry if not key.startswith('GymV')]
  if env_id not in known:
    near = ', '.join(_PREFIX + n for n in registry.nearest_ids(env_id, known))
    raise ValueError(
      f'{env_flag(config)}: Gymnasium has not registered such an environment; '
      f'the nearest are {near}; one of another package needs a function that '
      'makes it, --config.env.factory=module:function.'
    )
  kwargs = config.options.to_dict()
  for option, value in options.set_options(config).items():
    if option != 'max_episode_steps':
      raise ValueError(
        f'--config.env.{option}: is an option of EnvPool; give those of '
        f'{config.id} in --config.env.options.'
      )
    kwargs[option] = value
  if rendered:
    kwargs['render_mode'] = 'rgb_array'
  return functools.partial(_make, env_flag(config), env_id, kwargs)


def _make(flag: str, env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env:
  try:
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
  except (TypeError, gymnasium.error.Error) as e:
    raise ValueError(f'{flag}: Gymnasium cannot make it: {e}') from e


def check_made(config: ml_collections.ConfigDict, env: Any) -> None:
  """Raises ValueError if the environment is not a `gymnasium.Env`."""
  if not isinstance(env, gymnasium.Env):
    raise ValueError(
      f'{env_flag(config)}: must return a gymnasium.Env, not '
      f'{type(env).__name__}.'
    )
