"""Makes and describes single Gymnasium environments, as a config says."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import ml_collections
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from seedrl_jax import types
from seedrl_jax.envs import base, registry, specs
from seedrl_jax.runtime import settings

EnvFactory = Callable[[], gymnasium.Env]

PREFIX = 'gymnasium:'


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


def _flag(config: ml_collections.ConfigDict) -> str:
  """Returns the flag that names the environment, with its value."""
  if config.factory:
    return f'--config.env.factory={config.factory}'
  return f'--config.env.id={config.id}'


def _of_factory(
  config: ml_collections.ConfigDict, rendered: bool
) -> EnvFactory:
  flag = _flag(config)
  if given := [*registry.set_options(config), *config.options]:
    raise ValueError(
      f'--config.env.{given[0]}: is an option of EnvPool, which {flag} '
      'replaces; give it in --config.env.factory_kwargs.'
    )
  kwargs = config.factory_kwargs.to_dict()
  if rendered:
    function = settings.load_function(flag, config.factory)
    parameters = inspect.signature(function).parameters.values()
    if any(
      p.name == 'render_mode' or p.kind == p.VAR_KEYWORD for p in parameters
    ):
      kwargs['render_mode'] = 'rgb_array'
  return functools.partial(_call, flag, config.factory, kwargs)


def _call(flag: str, reference: str, kwargs: dict[str, Any]) -> gymnasium.Env:
  # Load by name: the function need not be picklable.
  env = settings.load_function(flag, reference)(**kwargs)
  if not isinstance(env, gymnasium.Env):
    raise ValueError(
      f'{flag}: must return a gymnasium.Env, not {type(env).__name__}.'
    )
  return env


def _of_id(config: ml_collections.ConfigDict, rendered: bool) -> EnvFactory:
  flag, env_id = _flag(config), config.id.removeprefix(PREFIX)
  # Gymnasium imports the module that an id names, and so do its adapters to old
  # Gym; but the id may come from an untrusted learner.
  known = [key for key in registration.registry if not key.startswith('GymV')]
  if env_id not in known:
    near = ', '.join(PREFIX + n for n in registry.nearest(env_id, known))
    raise ValueError(
      f'{flag}: Gymnasium has not registered such an environment; the nearest '
      f'are {near}; one of another package needs a function that makes it, '
      '--config.env.factory=module:function.'
    )
  kwargs = config.options.to_dict()
  for option, value in registry.set_options(config).items():
    if option != 'max_episode_steps':
      raise ValueError(
        f'--config.env.{option}: is an option of EnvPool; give those of '
        f'{config.id} in --config.env.options.'
      )
    kwargs[option] = value
  if rendered:
    kwargs['render_mode'] = 'rgb_array'
  return functools.partial(_make, flag, env_id, kwargs)


def _make(flag: str, env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env:
  try:
    return gymnasium.make(env_id, disable_env_checker=True, **kwargs)
  except (TypeError, gymnasium.error.Error) as e:
    raise ValueError(f'{flag}: Gymnasium cannot make it: {e}') from e


def describe(
  config: ml_collections.ConfigDict,
) -> tuple[base.StreamSpec, np.dtype]:
  """Returns the spec of an environment, and the dtype of its own actions.

  An environment is made and closed for it.
  """
  with registry.quiet_spaces():
    env = load_factory(config)()
  flag = _flag(config)

  def array_spec(leaf: spaces.Space) -> types.ArraySpec:
    if leaf.shape is None or leaf.dtype is None:
      raise ValueError(
        f'{flag}: observations must be arrays or dicts of arrays, not '
        f'{type(leaf).__name__}.'
      )
    return specs.array_spec(leaf.shape, leaf.dtype)

  name = config.id
  if config.factory:
    name = env.spec.id if env.spec is not None else config.factory
  try:
    kept = specs.keep_keys(config, env.observation_space)
    spec = base.StreamSpec(
      observation=specs.map_nest(array_spec, kept),
      action=specs.action_spec(env.action_space, flag),
      action_repeat=1,
      name=name,
    )
    return spec, np.dtype(env.action_space.dtype)
  finally:
    env.close()
