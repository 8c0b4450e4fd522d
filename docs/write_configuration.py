"""Writes configuration.md and configs/base.pyi from the tables of keys.

Run it after you change a table. Editors complete the types in base.pyi.
"""

import importlib
import pathlib
import re
from typing import Any

from seedrl_jax.agents import optimizer_config
from seedrl_jax.configs import base
from seedrl_jax.envs import trust
from seedrl_jax.runtime import keys, settings

PAGE = pathlib.Path(__file__).with_name('configuration.md')
STUB = pathlib.Path(base.__file__).with_suffix('.pyi')
_START = """# Configuration reference

Every key is a flag: `--config.KEY=VALUE`. In Python it is
`make_config(name, KEY=VALUE)` with two underscores for each dot. `seedrl train
--help --config=NAME` prints the same with the values of a configuration.

*Allowed* is what a run accepts; conditions on several keys are checked when it
starts. A default of *none* means that the key is not set; an *optional* key
need not be. An agent's tables have the keys that it adds and the defaults that
it changes. Configurations in `configs/` change more of them.

`python docs/write_configuration.py` generates this page from the `keys.py` of
each package and agent.
"""


def page() -> str:
  """Returns the page."""
  # All agents have an optimiser; their tables have what they change of it.
  table = {**base.KEYS, **optimizer_config.KEYS}
  common = _values(base.get_config(optimizer_config.set_defaults))
  parts = [_START, '\n## All runs\n', _tables('', common, table)]
  for name in trust.AGENTS:
    module = importlib.import_module(f'seedrl_jax.agents.{name}.keys')
    values = _values(base.get_config(module.set_defaults))
    own = {k: x for k, x in values.items() if (k, x) not in common.items()}
    own.pop('agent')
    parts.append(f'\n## The agent {name}\n')
    parts.append(_tables(f'{name}: ', own, {**table, **module.KEYS}))
  return ''.join(parts)


def _values(config: Any) -> dict[str, Any]:
  return dict(settings.leaves(config, base.ALLOWED))


def _tables(title: str, values: dict[str, Any], table: keys.Table) -> str:
  """Returns a table for each section, in the order of the keys."""
  tables: dict[str, list[str]] = {'': ['']}
  for name, key in table.items():
    if name not in values or not isinstance(key, keys.Key):
      continue
    section, value = name.rpartition('.')[0], values[name]
    if section and section not in tables:
      tables[section] = [f'\n### {title}`{section}`\n\n{table[section].help}\n']
    shown = f'`{dict(value) if hasattr(value, "items") else value!r}`'
    row = (
      '',
      f'`{name}`',
      shown.replace('`None`', 'none'),
      _allowed(key.allowed.words),
      key.help,
      '',
    )
    line = ' | '.join(re.sub(r'([|*<])', r'\\\1', x) for x in row)
    tables[section].append(line.strip())
  head = '| key | default | allowed | |\n|---|---|---|---|'
  return ''.join(
    '\n'.join([first, *([head] if rest else []), *rest, ''])
    for first, *rest in tables.values()
  )


def _allowed(words: str) -> str:
  """Returns a sentence's end as a phrase, the same on every machine."""
  words = re.sub(r"^(give|choose) |, up to this machine's \d+", '', words)
  phrase = words.removesuffix(', or omit it')
  return phrase if phrase == words else f'optional: {phrase}'


_STUB_START = '''"""Types of `base.py`, made by docs/write_configuration.py."""

from collections.abc import Callable
from typing import Any

import ml_collections

from seedrl_jax.runtime import keys, settings

KEYS: keys.Table
ALLOWED: dict[str, settings.Allowed]
SAVED: dict[str, settings.Allowed]

def get_config(
  set_agent: Callable[[ml_collections.ConfigDict], None] = ...,
) -> Config: ...
def set_atari_protocol(config: ml_collections.ConfigDict) -> None: ...
def set_concurrent_task(config: ml_collections.ConfigDict) -> None: ...
'''


def stub() -> str:
  """Returns the types of a configuration and its sections."""
  sections: dict[str, list[str]] = {'': []}
  for name, key in base.KEYS.items():
    section, _, last = name.rpartition('.')
    if isinstance(key, keys.Key):
      sections[section].append(f'  {last}: {_type(key)}')
    else:
      sections[name] = []
      sections[''].append(f'  {name}: _{name.title()}')
  # Last: the whole configuration.
  classes = [(f'_{name.title()}', sections[name]) for name in sections if name]
  return _STUB_START + ''.join(
    '\n'.join([f'\nclass {name}(ml_collections.ConfigDict):', *lines, ''])
    for name, lines in [*classes, ('Config', sections[''])]
  )


def _type(key: keys.Key) -> str:
  if key.default == {}:
    return 'ml_collections.ConfigDict'
  name = {tuple: 'tuple[Any, ...]'}.get(key.type, key.type.__name__)
  return f'{name} | None' if key.default is None else name


if __name__ == '__main__':
  PAGE.write_text(page())
  STUB.write_text(stub())
