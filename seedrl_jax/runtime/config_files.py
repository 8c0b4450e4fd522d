"""Finds and loads configurations, by name or path; needs no JAX."""

import difflib
import importlib
import importlib.util
import json
import pathlib
from collections.abc import Container, Mapping
from typing import Any

import ml_collections

from seedrl_jax.runtime import settings

# In a clone a link to the folder beside the package.
FOLDER = (pathlib.Path(__file__).parents[1] / 'configs').resolve()


def names() -> list[str]:
  """Returns the names of the configurations in `configs`."""
  paths = [path.relative_to(FOLDER) for path in FOLDER.rglob('*.py')]
  return sorted(path.with_suffix('').as_posix() for path in paths)


def find(name: str) -> pathlib.Path:
  """Returns a configuration's file by its path or name; ValueError if none."""
  for folder in (pathlib.Path(), FOLDER):
    for file in (folder / name, folder / f'{name}.py'):
      if file.is_file():
        return file
  known = names()
  near = difflib.get_close_matches(name.removesuffix('.py'), known, n=1)
  fix = f'the nearest is {near[0]}' if near else f'take {", ".join(known)}'
  raise ValueError(f'there is no configuration {name}; {fix}.')


def load(name: str) -> ml_collections.ConfigDict:
  """Returns the configuration of a name or path, locked; raises ValueError.

  'name:argument' gives `get_config` an argument.
  """
  name, colon, argument = name.partition(':')
  path = find(name)
  if path.is_relative_to(FOLDER):
    dotted = '.'.join(path.relative_to(FOLDER).with_suffix('').parts)
    module = importlib.import_module(f'seedrl_jax.configs.{dotted}')
  else:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
      raise ValueError(f'{path} is no Python file.')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
  get_config = settings.find_function(name, module, 'get_config')
  return get_config(*([argument] if colon else [])).lock()


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


def set_key(config: ml_collections.ConfigDict, key: str, value: Any) -> None:
  """Sets a dotted key; raises ValueError if there is none, or of that type."""
  *sections, name = key.split('.')
  try:
    section = config
    for part in sections:
      section = section[part]
    if name not in section:
      raise KeyError(name)
    if isinstance(value, float) and section.get_type(name) is int:
      # 1e5 is a whole number, as people write it.
      value = int(value) if value.is_integer() else value
    section[name] = value
  except (AttributeError, KeyError, TypeError) as e:
    known = [name for name, _ in settings.leaves(config)]
    if key in known:
      text = str(e).rstrip('.')
      if callable(value):
        text = "give a function by its name, as 'module:function'"
      raise ValueError(f'{key}={value!r}: {text}.') from e
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    raise ValueError(
      f'{key}: the configuration has no such key; the nearest is {near[0]}.'
    ) from e
