"""Makes and describes single Gymnasium environments, as a config says."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration

from seedrl_jax import types
from seedrl_jax.envs import (
  action_masks,
  env_thread,
  registry,
  specs,
  step_checks,
)
from seedrl_jax.runtime import nest, settings

PREFIX = 'gymnasium:'

# Running statistics of Gymnasium's wrappers Normalize…, and of copies of these.
_STATISTICS = {'obs_rms': 'Observation', 'return_rms': 'Reward'}


def load_factory(
  config: types.Config, rendered: bool = False
) -> Callable[[], gymnasium.Env]:
  """Returns a function that makes one environment.

  `rendered` passes `render_mode='rgb_array'`, if the factory takes it.

  Raises ValueError if there is no such function or id, or options are wrong.
  """
  flag, named = flag_of(config), registry.set_options(config)
  if config.factory:
    reference, kwargs = config.factory, config.factory_kwargs.to_dict()
    unheeded, key = [*named, *config.options], 'factory_kwargs'
  else:
    reference, kwargs = 'gymnasium:make', _make_kwargs(config)
    unheeded, key = [x for x in named if x != 'max_episode_steps'], 'options'
  if unheeded:
    raise ValueError(
      f'--config.env.{unheeded[0]}: is an option of EnvPool, which {flag} '
      f'replaces; give options in --config.env.{key}.'
    )
  function = settings.load_function(flag, reference)
  parameters = inspect.signature(function).parameters.values()
  if rendered and any(
    p.name == 'render_mode' or p.kind == p.VAR_KEYWORD for p in parameters
  ):
    kwargs['render_mode'] = 'rgb_array'

  def make() -> gymnasium.Env:
    try:
      env = function(**kwargs)
    except (TypeError, gymnasium.error.Error) as e:
      raise ValueError(f'{flag}: cannot be made: {e}') from e
    return adapt(env, config)

  return make


def flag_of(config: types.Config) -> str:
  """Returns the flag that names the environment, with its value."""
  if config.factory:
    return f'--config.env.factory={config.factory}'
  return f'--config.env.id={config.id}'


def _make_kwargs(config: types.Config) -> dict[str, Any]:
  env_id = config.id.removeprefix(PREFIX)
  # Gymnasium imports the module that an id names, and so do its adapters to old
  # Gym; but the id may come from an untrusted learner.
  ids = [key for key in registration.registry if not key.startswith('GymV')]
  if env_id not in ids:
    near = ', '.join(PREFIX + n for n in registry.nearest(env_id, ids))
    raise ValueError(
      f'--config.env.id={config.id}: Gymnasium has not registered such an '
      f'environment; the nearest are {near}; one of another package needs a '
      'function that makes it, --config.env.factory=module:function.'
    )
  return {
    **config.options.to_dict(),
    **registry.set_options(config),
    'id': env_id,
    'disable_env_checker': True,
  }


def adapt(env: Any, config: types.Config) -> gymnasium.Env:
  """Returns an environment whose actions and mask are as agents need them.

  Raises ValueError if it is none, or its actions or mask cannot be used.
  """
  flag = flag_of(config)
  if not isinstance(env, gymnasium.Env):
    raise ValueError(
      f'{flag}: must return a gymnasium.Env, not {type(env).__name__}.'
    )
  if isinstance(env.action_space, spaces.Dict | spaces.Tuple):
    env = PackedActions(env, flag)
  keys, space = action_masks.candidates(config), env.observation_space
  if not keys or config.action_mask == 'auto':
    return env
  is_there = isinstance(space, spaces.Dict) and keys[0] in space.spaces
  return env if is_there else InfoMask(env, keys[0])


class PackedActions(gymnasium.ActionWrapper):
  """Takes actions of several parts (Dict, Tuple) as one float32 vector."""

  def __init__(self, env: gymnasium.Env, flag: str = 'env'):
    """Raises ValueError, which names `flag`, if a part has no `ActionSpec`."""
    super().__init__(env)
    self._space = env.action_space
    parts = [specs.action_spec(x, flag) for x in _leaves(self._space)]
    self._spec = types.hybrid(parts)
    self.action_space = specs.PackedSpace(self._spec)

  def action(self, action: np.ndarray) -> Any:
    """Returns the action `[N]` as the environment takes it."""
    parts = [
      numbers.reshape(spec.shape).astype(spec.dtype)
      for spec, numbers in self._spec.split(np.asarray(action))
    ]
    return _unflatten(self._space, iter(parts))


def _leaves(space: spaces.Space) -> list[spaces.Space]:
  """Returns the spaces in Dicts and Tuples, in order."""
  match space:
    case spaces.Dict():
      return [leaf for x in space.spaces.values() for leaf in _leaves(x)]
    case spaces.Tuple():
      return [leaf for x in space.spaces for leaf in _leaves(x)]
  return [space]


def _unflatten(space: spaces.Space, parts: Iterator[np.ndarray]) -> Any:
  """Returns an action of the space; undoes `_leaves`."""
  match space:
    case spaces.Dict():
      return {k: _unflatten(x, parts) for k, x in space.spaces.items()}
    case spaces.Tuple():
      return tuple(_unflatten(x, parts) for x in space.spaces)
    case spaces.Discrete():
      return next(parts)[()]
  return next(parts).astype(space.dtype)


class InfoMask(gymnasium.Wrapper):
  """Puts `info[key]`, an action mask, into the observation.

  An observation that is no dict gets the key 'observation'.

  Raises ValueError if the info has no such mask.
  """

  def __init__(self, env: gymnasium.Env, key: str):
    super().__init__(env)
    self._key = key
    flag = f'--config.env.action_mask={key}'
    self._size = sum(specs.action_spec(env.action_space, flag).sizes) or 1
    space = env.observation_space
    self._is_dict = isinstance(space, spaces.Dict)
    parts: dict[str, Any] = {'observation': space}
    if isinstance(space, spaces.Dict):
      parts = dict(space.spaces)
    mask = spaces.MultiBinary(self._size)
    self.observation_space = spaces.Dict({**parts, key: mask})

  def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
    observation, info = self.env.reset(**kwargs)
    return self._with_mask(observation, info, 'reset'), info

  def step(self, action: Any) -> Any:
    observation, *rest, info = self.env.step(action)
    return self._with_mask(observation, info, 'step'), *rest, info

  def _with_mask(
    self, observation: Any, info: dict[str, Any], method: str
  ) -> dict[str, Any]:
    mask = np.asarray(info.get(self._key))
    if mask.size != self._size or mask.dtype.kind not in 'biuf':
      raise ValueError(
        f'--config.env.action_mask={self._key}: info[{self._key!r}] of '
        f'{method} must have {self._size} numbers, one for each value of each '
        f'choice, not {info.get(self._key)!r:.99}.'
      )
    parts = observation if self._is_dict else {'observation': observation}
    return {**parts, self._key: (mask.ravel() != 0).astype(np.int8)}


class Description(NamedTuple):
  """What one environment looks like."""

  spec: types.StreamSpec  # not yet joined (`specs.joined_spec`)
  action_dtype: np.dtype  # of the actions that the environment takes
  # Of each array of the observation; None if there are none to check.
  bounds: Sequence[step_checks.Bounds | None]


def describe(config: types.Config) -> Description:
  """Returns what the configured environment looks like.

  An environment is made and closed for it, in a thread of its own.
  """

  def call() -> Description:
    env = load_factory(config)()
    try:
      for sentence in lost_statistics(env, flag_of(config)):
        action_masks.warn_once(sentence)
      return describe_env(env, config)
    finally:
      env.close()

  name = f'describe-{config.factory or config.id}'
  return env_thread.call_in_thread(name, call)


def describe_env(env: gymnasium.Env, config: types.Config) -> Description:
  """Returns what an environment of the `env` section looks like."""
  name, flag = config.id, flag_of(config)
  if config.factory:
    name = env.spec.id if env.spec is not None else config.factory
  dropped, space = config.drop_observations, env.observation_space
  observation = specs.observation_spec(space, flag, dropped)
  parts = nest.flatten_with_paths(specs.keep_keys(dropped, space))
  bounds = [
    specs.find_bounds(part, leaf.dtype, key)
    for (key, part), leaf in zip(parts, nest.flatten(observation), strict=True)
  ]
  spec = types.StreamSpec(
    observation=observation,
    action=specs.action_spec(env.action_space, flag),
    action_repeat=1,
    name=name,
  )
  spec = action_masks.with_mask(config, spec)
  return Description(spec, np.dtype(env.action_space.dtype), bounds)


def lost_statistics(env: gymnasium.Env, flag: str) -> list[str]:
  """Returns sentences on statistics in wrappers, which no checkpoint has."""
  return [
    f'{flag}: the statistics of Normalize{name} are not in checkpoints, so '
    'evaluation, load_policy and a resumed run begin without them; take it off '
    f'and give --config.normalization.{name.lower()}s=True, an option of ppo.'
    for attribute, name in _STATISTICS.items()
    if env.has_wrapper_attr(attribute)
  ]
