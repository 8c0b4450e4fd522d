"""Writes configuration.md from the code; run it after changes of keys."""

import importlib
import pathlib
import re
import types
from collections.abc import Mapping
from typing import Any

from seedrl_jax.agents import optimizer_config
from seedrl_jax.configs import base
from seedrl_jax.envs import trust
from seedrl_jax.launch import config_flag
from seedrl_jax.runtime import ranges as ranges_lib
from seedrl_jax.runtime import settings

PAGE = pathlib.Path(__file__).with_name('configuration.md')
_START = """# Configuration reference

Every key is a flag: `--config.KEY=VALUE`. In Python it is
`make_config(name, KEY=VALUE)` with two underscores for each dot. `seedrl train
--help --config=NAME` prints the same with the values of a configuration.

This page is made from `configs/base.py` and each agent's `config.py` by
`python docs/write_configuration.py`; a test fails if it is stale. *May be* is
what a run accepts; conditions on several keys are checked when it starts. A key
whose default is *none* is not set; for environments that means EnvPool's own.
A key without a sentence has one above it, or is explained by its name.

The tables of an agent have the keys that it adds, and defaults that it changes.
Configurations in `configs/` change more of them.
"""


def page() -> str:
  """Returns the page."""
  # All agents have an optimiser; what they change of it is theirs.
  common = _values(base.get_config(optimizer_config.set_defaults))
  said = _said(base) | _said(optimizer_config)
  ranges = {**ranges_lib.RANGES, **optimizer_config.RANGES}
  parts = [_START, '\n## All runs\n', _tables('', common, said, ranges)]
  for name in trust.AGENTS:
    module = importlib.import_module(f'seedrl_jax.agents.{name}.config')
    values = _values(base.get_config(module.set_defaults))
    own = {k: x for k, x in values.items() if (k, x) not in common.items()}
    own.pop('agent')
    words = {k: x or said.get(k, '') for k, x in _said(module).items()}
    parts.append(f'\n## The agent {name}\n')
    parts.append(_tables(f'{name}: ', own, words, {**ranges, **module.RANGES}))
  return ''.join(parts)


def _values(config: Any) -> dict[str, Any]:
  return dict(settings.leaves(config, ranges_lib.RANGES))


def _said(module: types.ModuleType) -> dict[str, str]:
  return config_flag.comments(pathlib.Path(str(module.__file__)))


def _tables(
  title: str,
  values: Mapping[str, Any],
  said: Mapping[str, str],
  ranges: Mapping[str, settings.Allowed],
) -> str:
  """Returns a table for each section, in the order of the source."""
  tables: dict[str, list[str]] = {'': ['']}
  for key in sorted(values, key=list(said).index):
    section, value = key.rpartition('.')[0], values[key]
    text = f'\n### {title}`{section}`\n\n{said.get(section, "")}\n'
    shown = f'`{dict(value) if hasattr(value, "items") else value!r}`'
    # The page must be the same on every machine.
    words = re.sub(
      r"^(give|choose) |, up to this machine's \d+", '', ranges[key].words
    )
    row = ('', f'`{key}`', shown.replace('`None`', 'none'), words, said[key])
    line = ' | '.join(re.sub(r'([|*<])', r'\\\1', x) for x in (*row, ''))
    tables.setdefault(section, [text]).append(line.strip())
  head = '| key | default | may be | |\n|---|---|---|---|'
  return ''.join(
    '\n'.join([first, *([head] if rest else []), *rest, ''])
    for first, *rest in tables.values()
  )


if __name__ == '__main__':
  PAGE.write_text(page())
