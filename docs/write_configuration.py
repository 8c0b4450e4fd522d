"""Writes configuration.md from the code: `python docs/write_configuration.py`.

Keys, defaults and sentences are those of `configs/base.py` and of the agents'
`config.py`; what a key may be is what a run checks.
"""

import importlib
import pathlib
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

from seedrl_jax.agents import optimizer_config
from seedrl_jax.configs import base
from seedrl_jax.envs import trust
from seedrl_jax.launch import config_flag
from seedrl_jax.run import layout
from seedrl_jax.runtime import settings

PAGE = pathlib.Path(__file__).with_name('configuration.md')
_START = """# Configuration reference

<!-- Written by `python docs/write_configuration.py`; do not edit. -->

Every key is a flag: `--config.KEY=VALUE`. In Python it is
`make_config(name, KEY=VALUE)` with two underscores for each dot. `seedrl train
--help --config=NAME` prints the same with the values of a configuration.

This page is made from `configs/base.py` and each agent's `config.py` by
`python docs/write_configuration.py`; a test fails if it is stale. *May be* is
what a run accepts; conditions on several keys are checked when it starts.

`none` is a key that is not set: for environments that means EnvPool's default.
"""
_AGENT = """
## The agent {name}

Keys that `{name}` adds, and defaults that it changes. Configurations in
`configs/` change more of them.
"""
_TABLE = '\n| key | default | may be | |\n|---|---|---|---|'


def page() -> str:
  """Returns the page."""
  # All agents have an optimiser; what they change of it is theirs.
  common = _values(base.get_config(optimizer_config.set_defaults))
  said = _said(base) | _said(optimizer_config)
  ranges = {**layout.RANGES, **optimizer_config.RANGES}
  lines = [_START, '## All runs', *_tables(common, said, ranges)]
  for name in trust.AGENTS:
    module = importlib.import_module(f'seedrl_jax.agents.{name}.config')
    values = _values(base.get_config(module.set_defaults))
    own = {
      key: value
      for key, value in values.items()
      if key != 'agent' and (key not in common or common[key] != value)
    }
    # What the agent says of a key comes before what all runs say.
    own_said = {k: x or said.get(k, '') for k, x in _said(module).items()}
    lines.append(_AGENT.format(name=name))
    lines += _tables(own, own_said, {**ranges, **module.RANGES}, f'{name}: ')
  return '\n'.join(lines) + '\n'


def _said(module: types.ModuleType) -> dict[str, str]:
  return config_flag.comments(pathlib.Path(module.__file__))


def _values(config: Any) -> dict[str, Any]:
  return dict(settings.leaves(config, layout.RANGES))


def _tables(
  values: Mapping[str, Any],
  said: Mapping[str, str],
  ranges: Mapping[str, settings.Allowed],
  of: str = '',
) -> Iterator[str]:
  """Yields a table for each section, in the order of the source."""
  order = {key: i for i, key in enumerate(said)}
  keys = sorted(values, key=lambda key: order.get(key, len(order)))
  sections = dict.fromkeys(key.rpartition('.')[0] for key in keys)
  for section in sorted(sections, key=bool):
    if section:
      yield f'\n### {of}`{section}`'
    if text := said.get(section):
      yield f'\n{text}'
    yield _TABLE
    for key in keys:
      if key.rpartition('.')[0] == section:
        yield _row(key, values[key], ranges[key].words, said.get(key, ''))


def _row(key: str, value: Any, words: str, text: str) -> str:
  shown = 'none' if value is None else f'`{_plain(value)!r}`'
  # The page must be the same on every machine.
  words = re.sub("^(give|choose) |, up to this machine's \\d+", '', words)
  return f'| `{key}` | {shown} | {_text(words)} | {_text(text)} |'


def _plain(value: Any) -> Any:
  return dict(value) if hasattr(value, 'items') else value


def _text(words: str) -> str:
  """Returns words that Markdown leaves as they are."""
  for mark in '|*<':
    words = words.replace(mark, f'\\{mark}')
  return words


if __name__ == '__main__':
  PAGE.write_text(page())
