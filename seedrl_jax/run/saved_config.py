"""The configuration of a run that is there already, to go on with it.

A work directory may be a stranger's: reading its configuration runs no code.
"""

import importlib
import shlex
from collections.abc import Collection, Mapping
from typing import Any

import ml_collections
from ml_collections.config_flags import config_path

from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import trust
from seedrl_jax.runtime import config_files, file_io, keys, settings
from seedrl_jax.runtime import workdir as workdir_lib

# Differences that a message names.
_MOST_NAMED = 5
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


def read(
  directory: workdir_lib.Workdir, has_file: bool = False
) -> ml_collections.ConfigDict | None:
  """Returns the configuration of the latest start, locked; None if none began.

  A user who `has_file`, of another configuration, starts a run anew with it
  before the first checkpoint: None.

  Keys that an earlier release lacked have their defaults. The values of this
  release's keys have their types, which JSON does not tell. Raises WorkdirError
  if it is damaged.
  """
  is_anew = has_file and not file_io.numbers_in(directory.checkpoints)
  if is_anew or not directory.config_json.exists():
    return None
  saved = directory.read_config(base_config.SAVED)
  table, is_ours = dict(base_config.KEYS), saved.agent in trust.AGENTS
  if is_ours:
    name = f'seedrl_jax.agents.{saved.agent}.keys'
    table |= importlib.import_module(name).KEYS
  config = ml_collections.ConfigDict()
  keys.set_defaults(config, table)
  sections = [k for k, x in table.items() if getattr(x, 'default', 0) == {}]
  for key, value in settings.leaves(saved, sections):
    value = tuple(value) if isinstance(value, (list, tuple)) else value
    try:
      if key in table:
        config_files.set_key(config, key, value)
      elif not is_ours:
        config.update(_nested({key: value}))
    except ValueError as e:
      raise workdir_lib.WorkdirError(
        f'{directory.config_json} is damaged ({e}); put a good one back.'
      ) from e
  return config.lock()


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns values by their dotted keys as nested dicts."""
  nested: dict[str, Any] = {}
  for key, value in values.items():
    *sections, last = key.split('.')
    target = nested
    for section in sections:
      target = target.setdefault(section, {})
    target[last] = value
  return nested


def check_resumable(
  old: ml_collections.ConfigDict, new: ml_collections.ConfigDict
) -> list[str]:
  """Returns a configuration's changes as 'key: old -> new'.

  Raises WorkdirError if the checkpoint forbids some; names all of them.
  """
  before, after = config_files.flat_config(old), config_files.flat_config(new)
  for key in config_files.reported(after):
    after[key] = before[key]
  changes: dict[str, str] = {}
  for key in sorted(before.keys() | after.keys()):
    a, b = before.get(key), after.get(key)
    if a != b:
      changes[key] = f'{key}: {a} -> {b}'
  conflicts = '; '.join(
    text
    for key, text in changes.items()
    if f'{key}.'.startswith(_FIXED) and key not in _FREE
  )
  if conflicts:
    raise workdir_lib.WorkdirError(
      'The configuration does not fit the checkpoint in --workdir '
      f'({conflicts}); undo that or start with another --workdir.'
    )
  return list(changes.values())


def check_resume(
  directory: workdir_lib.Workdir,
  saved: ml_collections.ConfigDict,
  config: ml_collections.ConfigDict,
  changed: Collection[str],
  file: ml_collections.ConfigDict | None = None,
  name: str = '',
  allowed: Collection[str] = (),
  command: str = '',
) -> None:
  """Checks that a run may go on with a configuration.

  Args:
    saved: that of the run in `directory`.
    config: `saved` with the keys `changed` by the user.
    file: what else the user gives, if anything, as the file `name`.
    allowed: flags that allow functions, see `flags_needed`.
    command: that of the user, for the message.

  Raises ValueError if values of the file differ from the run's, or functions
  lack a permission: a stranger may have named them. The user's need none.
  """
  named = {key: config_path.get_value(key, config) for key in changed}
  sources = [_nested(named)]
  if file is not None:
    _check_same(saved, file, name, changed)
    sources.append(file.to_dict())
  allowed = {*allowed, *(flag for x in sources for flag in flags_needed(x))}
  needed = flags_needed(config.to_dict())
  if missing := [flag for flag in needed if flag not in allowed]:
    names = ', '.join(flag.partition('=')[2] for flag in missing)
    fix = f'{command} {shlex.join(missing)}'.strip()
    raise ValueError(
      f'--workdir={directory.path}: its run asks for {names}, and a work '
      f'directory of others could so run any code; if you trust it: {fix}'
    )


def _check_same(
  saved: ml_collections.ConfigDict,
  file: ml_collections.ConfigDict,
  name: str,
  changed: Collection[str],
) -> None:
  a, b = config_files.flat_config(saved), config_files.flat_config(file)
  changed = {*changed, *config_files.reported(a)}
  keys_of_both = [
    key
    for key in sorted(a.keys() & b.keys())
    if a[key] != b[key]
    and not any(f'{key}.'.startswith(f'{x}.') for x in changed)
  ]
  if not keys_of_both:
    return
  texts = [
    f'{key} is {a[key]!r} in the run and {b[key]!r} in the file'
    for key in keys_of_both[:_MOST_NAMED]
  ]
  if more := len(keys_of_both) - len(texts):
    texts.append(f'{more} more differ')
  first = keys_of_both[0]
  raise ValueError(
    f'--config={name} differs from the run in --workdir: {"; ".join(texts)}. '
    "Leave --config out to go on with the run's values, and give what shall "
    f'change by its key (--config.{first}={b[first]}); or start a new run in '
    'another --workdir.'
  )


def flags_needed(config: Mapping[str, Any]) -> list[str]:
  """Returns `trust.flags_needed`, and those for writers of metrics."""
  writers = config.get('log', {}).get('writers', ())
  return [
    *trust.flags_needed(config),
    *(f'{trust.FACTORY_FLAG}={name}' for name in writers if ':' in name),
  ]
