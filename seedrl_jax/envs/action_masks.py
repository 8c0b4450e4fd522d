"""Action masks of environments: which arrays are masks, and what they allow.

A mask has a number for each value of each discrete choice, in C order. What is
not 0 is legal. Arrays may be NumPy's or JAX's.
"""

import functools
import itertools
import logging
import math

import numpy as np

from seedrl_jax import types

# The keys that 'auto' tries.
_AUTO = ('action_mask', 'legal_action_mask')
# EnvPool's family, and the suite, whose states may lack a legal choice (Maze,
# Cleaner and Snake). Any action then ends the episode.
LENIENT = 'jumanji'
NO_CHOICE = (
  'gave an action mask without a legal choice in a step that is not the last: '
  'end the episode before, or ignore the mask with --config.env.action_mask=.'
)


def candidates(config: types.Config) -> tuple[str, ...]:
  """Returns the keys that may be the mask, given the `env` section."""
  setting = config.action_mask
  keys = _AUTO if setting == 'auto' else (setting,) * bool(setting)
  return tuple(key for key in keys if key not in config.drop_observations)


def with_mask(config: types.Config, spec: types.StreamSpec) -> types.StreamSpec:
  """Returns the spec with the key of its mask; warns of one that does not fit.

  Raises ValueError if `env.action_mask` names an array that is no mask.
  """
  is_dict = isinstance(spec.observation, dict)
  for key in candidates(config):
    if is_dict and key in spec.observation:
      fault = _fault(spec.action, spec.observation[key])
      if not fault:
        return spec._replace(action_mask=key)
    else:
      fault = 'does not exist in the observation'
      if config.action_mask == 'auto':
        continue
    text = f'{key!r} of {spec.name} {fault}'
    if config.action_mask != 'auto':
      raise ValueError(
        f'--config.env.action_mask={key}: {text}; name another key, or none '
        '(--config.env.action_mask=).'
      )
    warn_once(f'{text}, so it masks no actions and is an ordinary observation.')
  return spec._replace(action_mask='')


def _fault(action: types.ActionSpec, array: types.Nest) -> str:
  """Returns why an array cannot be the mask; '' if it can."""
  if not action.choices:
    return 'cannot mask actions that are continuous'
  if not types.is_spec(array) or array.dtype.kind not in 'biu':
    return 'is not an array of booleans or integers'
  size = sum(action.sizes)
  if math.prod(array.shape) == size:
    return ''
  return (
    f'has the shape {array.shape}, but a mask has {size} numbers here, one for '
    'each value of each discrete choice'
  )


@functools.cache
def warn_once(sentence: str) -> None:
  """Logs each warning only once in a process."""
  logging.warning('%s', sentence)


def _choices(
  spec: types.StreamSpec, observation: types.Nest
) -> list[types.Array]:
  """Returns which values of each choice are legal, bool `[..., size]`."""
  mask, sizes = observation[spec.action_mask], spec.action.sizes
  rank = mask.ndim - len(spec.observation[spec.action_mask].shape)
  legal = mask.reshape(*mask.shape[:rank], -1) != 0
  ends = itertools.accumulate(sizes)
  return [
    legal[..., end - size : end] for end, size in zip(ends, sizes, strict=True)
  ]


def lacks_choice(
  spec: types.StreamSpec, observation: types.Nest
) -> types.Array:
  """Returns whether a choice has no legal value, bool `[...]`."""
  return sum(~x.any(axis=-1) for x in _choices(spec, observation)) > 0


def is_legal(
  spec: types.StreamSpec, observation: types.Nest, action: np.ndarray
) -> np.ndarray:
  """Returns whether actions `[B, ...]` are legal, bool `[B]`.

  A choice without a legal value may be anything.
  """
  legal = np.ones(len(action), bool)
  rows = action.reshape(len(action), -1)[:, spec.action.choices].astype(int)
  for x, value in zip(_choices(spec, observation), rows.T, strict=True):
    legal &= x[np.arange(len(x)), value] | ~x.any(axis=-1)
  return legal


def sample(
  spec: types.StreamSpec, rng: np.random.Generator, observation: types.Nest
) -> np.ndarray:
  """Returns uniformly random legal actions `[B, ...]`."""
  legal = _choices(spec, observation)
  values = [
    np.argmax(rng.random(x.shape) * (x | ~x.any(axis=-1, keepdims=True)), -1)
    for x in legal
  ]
  action = spec.action.sample(rng, len(values[0]))
  action.reshape(len(action), -1)[:, spec.action.choices] = np.stack(values, -1)
  return action
