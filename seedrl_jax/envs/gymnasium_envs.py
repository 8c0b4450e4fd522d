"""Makes and describes single Gymnasium environments, as a config says."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import ml_collections
import numpy as np
from gymnasium.envs import registration

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
  flag = _flag(config)
  if config.factory:
    reference, kwargs = config.factory, config.factory_kwargs.to_dict()
    if given := [*registry.set_options(config), *config.options]:
      raise ValueError(
        f'--config.env.{given[0]}: is an option of EnvPool, which {flag} '
        'replaces; give it in --config.env.factory_kwargs.'
      )
  else:
    reference, kwargs = 'gymnasium:make', _make_kwargs(config)
  function = settings.load_function(flag, reference)
  parameters = inspect.signature(function).parameters.values()
  if rendered and any(
    p.name == 'render_mode' or p.kind == p.VAR_KEYWORD for p in parameters
  ):
    kwargs['render_mode'] = 'rgb_array'
  return functools.partial(_make, flag, reference, kwargs)


def _flag(config: ml_collections.ConfigDict) -> str:
  """Returns the flag that names the environment, with its value."""
  if config.factory:
    return f'--config.env.factory={config.factory}'
  return f'--config.env.id={config.id}'


def _make_kwargs(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the arguments of `gymnasium.make` for the configured id."""
  env_id = config.id.removeprefix(PREFIX)
  # Gymnasium imports the module that an id names, and so do its adapters to old
  # Gym; but the id may come from an untrusted learner.
  known = [key for key in registration.registry if not key.startswith('GymV')]
  if env_id not in known:
    near = ', '.join(PREFIX + n for n in registry.nearest(env_id, known))
    raise ValueError(
      f'--config.env.id={config.id}: Gymnasium has not registered such an '
      f'environment; the nearest are {near}; one of another package needs a '
      'function that makes it, --config.env.factory=module:function.'
    )
  options = registry.set_options(config)
  for option in options:
    if option != 'max_episode_steps':
      raise ValueError(
        f'--config.env.{option}: is an option of EnvPool; give those of '
        f'{config.id} in --config.env.options.'
      )
  return {
    **config.options.to_dict(),
    **options,
    'id': env_id,
    'disable_env_checker': True,
  }


def _make(flag: str, reference: str, kwargs: dict[str, Any]) -> gymnasium.Env:
  # Load by name: the function need not be picklable.
  function = settings.load_function(flag, reference)
  try:
    env = function(**kwargs)
  except (TypeError, gymnasium.error.Error) as e:
    raise ValueError(f'{flag}: cannot be made: {e}') from e
  if not isinstance(env, gymnasium.Env):
    raise ValueError(
      f'{flag}: must return a gymnasium.Env, not {type(env).__name__}.'
    )
  return env


def describe(
  config: ml_collections.ConfigDict,
) -> tuple[base.StreamSpec, np.dtype]:
  """Returns the spec of an environment, and the dtype of its own actions.

  An environment is made and closed for it. The observation is not yet joined
  (`specs.joined_spec`).
  """
  with registry.quiet_spaces():
    env = load_factory(config)()
  flag = _flag(config)

  name = config.id
  if config.factory:
    name = env.spec.id if env.spec is not None else config.factory
  try:
    kept = specs.keep_keys(config, env.observation_space)
    spec = base.StreamSpec(
      observation=specs.map_nest(
        functools.partial(specs.space_spec, flag=flag), kept
      ),
      action=specs.action_spec(env.action_space, flag),
      action_repeat=1,
      name=name,
    )
    return spec, np.dtype(env.action_space.dtype)
  finally:
    env.close()
