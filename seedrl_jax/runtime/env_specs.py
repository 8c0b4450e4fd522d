"""Environments' specs as JSON, so that a policy runs without environments."""

from typing import Any

import numpy as np

from seedrl_jax import types


def to_json(spec: types.EnvSpec) -> dict[str, Any]:
  """Returns a spec as JSON values; an observation may be a nest of dicts."""
  action, parts = spec.action, spec.stream.parts
  return {
    'env_id': spec.env_id,
    'observation': _nest_to_json(spec.observation),
    'action': _action_to_json(action),
    'action_repeat': spec.action_repeat,
    'num_envs': spec.num_envs,
    'num_eval_envs': spec.num_eval_envs,
    'parts': parts and _nest_to_json(parts),
    'action_mask': spec.stream.action_mask,
    'tasks': spec.stream.tasks,
  }


def from_json(value: dict[str, Any]) -> types.EnvSpec:
  """Undoes `to_json`; raises KeyError, TypeError or ValueError if damaged."""
  action, parts = value['action'], value.get('parts')
  stream = types.StreamSpec(
    observation=_nest_from_json(value['observation']),
    action=_action_from_json(action),
    action_repeat=value['action_repeat'],
    name=value['env_id'],
    parts=parts and _nest_from_json(parts),
    action_mask=value.get('action_mask', ''),
    tasks=tuple(value.get('tasks', ())),
  )
  return types.EnvSpec(stream, value['num_envs'], value['num_eval_envs'])


def _action_to_json(action: types.ActionSpec) -> dict[str, Any]:
  parts = [_action_to_json(part) for part in action.parts]
  return action._asdict() | {'dtype': action.dtype.name, 'parts': parts}


def _action_from_json(value: dict[str, Any]) -> types.ActionSpec:
  return types.ActionSpec(
    tuple(value['shape']),
    np.dtype(value['dtype']),
    tuple(value['minimum']),
    tuple(value['maximum']),
    tuple(_action_from_json(part) for part in value.get('parts', ())),
  )


def _nest_to_json(nest: types.Nest) -> Any:
  if types.is_spec(nest):
    categories = [[x.start, x.stop] for x in nest.categories or ()]
    return nest._asdict() | {
      'dtype': nest.dtype.name,
      'categories': categories,
    }
  # No JSON object, which would make text of keys that are numbers.
  return {'entries': [(key, _nest_to_json(nest[key])) for key in sorted(nest)]}


def _nest_from_json(value: Any) -> types.Nest:
  if 'entries' in value:
    entries = value['entries']
    # An object in earlier releases.
    pairs = entries.items() if isinstance(entries, dict) else entries
    return {k: _nest_from_json(x) for k, x in pairs}
  categories = value.get('categories')
  if categories is not None:
    categories = tuple(range(start, stop) for start, stop in categories)
  shape, dtype = tuple(value['shape']), np.dtype(value['dtype'])
  return types.ArraySpec(shape, dtype, categories)
