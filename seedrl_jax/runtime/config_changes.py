"""Compares the configurations of two starts of a run."""

import json
from collections.abc import Container, Mapping
from typing import Any

import ml_collections

from seedrl_jax.runtime import settings, workdir

# Keys that a checkpoint depends on, so a resumed run cannot change them.
_FIXED = (
  'agent.',
  'env.id.',
  'env.factory.',
  'env.stack_num.',
  'network.',
  'optimizer.name.',
  'optimizer.rmsprop_centered.',
  'optimizer.rmsprop_momentum.',
)
# Except for these, which the parameters' shapes show. Earlier releases lack
# them.
_FREE = {
  'network.categories',
  'network.popart',
  'network.use_action_mask',
  'network.use_task',
}


def check_resumable(
  old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Returns a configuration's changes as 'key: old -> new'.

  Raises WorkdirError if the checkpoint forbids some; names all of them.
  """
  before, after = flat_config(old), flat_config(new)
  for key in reported(after):
    after[key] = before[key]
  changes: dict[str, str] = {}
  for key in sorted(before.keys() | after.keys()):
    a, b = before.get(key), after.get(key)
    if a != b:
      changes[key] = f'{key}: {a} -> {b}'
  refused = '; '.join(
    text
    for key, text in changes.items()
    if f'{key}.'.startswith(_FIXED) and key not in _FREE
  )
  if refused:
    raise workdir.WorkdirError(
      'The configuration does not fit the checkpoint in --workdir '
      f'({refused}); undo that or start with another --workdir.'
    )
  return list(changes.values())


def differences(
  old: ml_collections.ConfigDict,
  new: ml_collections.ConfigDict,
  keys: tuple[str, ...],
) -> list[str]:
  """Returns what differs in keys below these prefixes, if both have the key."""
  before, after = flat_config(old), flat_config(new)
  both = (before.keys() & after.keys()) - reported(after)
  return [
    f'{key} is {before[key]} there and {after[key]} here'
    for key in sorted(both)
    if before[key] != after[key] and f'{key}.'.startswith(keys)
  ]


def reported(config: Mapping[str, Any]) -> set[str]:
  """Returns the keys of a flat configuration that the environments set.

  With a factory or tasks, the id is only the name that these report.
  """
  has_name = config['env.factory'] or config.get('env.tasks')
  return {'env.id'} if has_name else set()


def flat_config(
  config: ml_collections.ConfigDict, whole: Container[str] = ()
) -> dict[str, Any]:
  """Returns values, as in JSON, by dotted keys; sections in `whole` are one."""
  plain = json.loads(json.dumps(config.to_dict(), default=str))
  return dict(settings.leaves(plain, whole))
