"""Expresses configurations as command-line flags."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from seedrl_jax.configs import base as base_config
from seedrl_jax.runtime import config_files, keys, settings

# Sections with keys of the user's choice are given as a whole.
_WHOLE = [k for k, a in base_config.ALLOWED.items() if a is settings.SECTION]
_ABSENT = 'absent'


def flags(
  base: ml_collections.ConfigDict, config: ml_collections.ConfigDict
) -> list[str]:
  """Returns the flags that change `base` to `config`, in order of keys.

  Raises:
    ValueError: if no flags do.
  """
  changed = list(changes(base, config))
  if any(_ABSENT in values or values[1] is None for _, *values in changed):
    raise ValueError('Flags cannot add or remove a key, or set None.')
  return [f'--config.{key}={_text(value)}' for key, _, value in changed]


def changes(
  old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> Iterator[tuple[str, Any, Any]]:
  """Yields dotted keys and their two values, as in JSON, where these differ.

  A key that only one has, with its default, makes no difference: the other may
  be of an earlier release.
  """
  before, after = (config_files.flat_config(c, _WHOLE) for c in (old, new))
  for key in sorted(before.keys() | after.keys()):
    entry = base_config.KEYS.get(key)
    default: Any = _ABSENT
    if isinstance(entry, keys.Key):
      # As in JSON.
      is_tuple = isinstance(entry.default, tuple)
      default = list(entry.default) if is_tuple else entry.default
    a, b = before.get(key, default), after.get(key, default)
    # In a run's folder, the id of these environments is only their name.
    has_name = after.get('env.factory') or after.get('env.tasks')
    is_name = key == 'env.id' and has_name
    if a != b and not is_name:
      yield key, a, b


def _text(value: Any) -> str:
  return str(tuple(value) if isinstance(value, list) else value)


def train(config: str, arguments: Sequence[str], folder: str) -> list[str]:
  """Returns the arguments of seedrl train."""
  return [f'--config={config}', *arguments, f'--workdir={folder}']


def nearest(
  config: ml_collections.ConfigDict,
  known: Mapping[str, ml_collections.ConfigDict],
) -> tuple[str, list[str]] | None:
  """Returns the `known` one that the shortest flags change to `config`.

  These come second. Returns None if no flags do.
  """
  candidates = []
  for name, base in known.items():
    try:
      candidates.append((name, flags(base, config)))
    except ValueError:
      continue
  return min(candidates, key=lambda x: len(str(x)), default=None)


def shortest(
  config: ml_collections.ConfigDict,
  known: Mapping[str, ml_collections.ConfigDict],
  folder: str,
) -> str | None:
  """Returns the shortest command for a run; None if no `known` one will do."""
  match = nearest(config, known)
  if match is None:
    return None
  return shlex.join(['seedrl', 'train', *train(*match, folder)])
