"""Configuration keys as data: defaults, allowed values and help.

A table maps dotted names to a `Key`, or to a `Section` before the first of its
keys. Imports no JAX.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections
from ml_collections import config_dict

from seedrl_jax.runtime import settings


class Section(NamedTuple):
  """A group of keys."""

  help: str

  def make(self) -> ml_collections.ConfigDict:
    """Returns the section, still empty."""
    return ml_collections.ConfigDict()


class Key(NamedTuple):
  """One key of a configuration."""

  default: Any  # immutable, except that {} is made anew each time
  allowed: settings.Allowed  # the values that a run accepts
  help: str  # sentences for users
  optional_type: type | None = None  # of its values if the default is None

  @property
  def type(self) -> type:
    """The type of its values, except None."""
    return self.optional_type or type(self.default)

  def make(self) -> Any:
    """Returns the default as a value of a `ConfigDict`."""
    if self.default is None:
      return config_dict.placeholder(self.type)
    if self.default == {}:
      return ml_collections.ConfigDict()
    return self.default


Table = Mapping[str, Key | Section]


def set_defaults(config: ml_collections.ConfigDict, table: Table) -> None:
  """Adds all keys and sections of `table` to `config`, with their defaults."""
  values = {name: entry.make() for name, entry in table.items()}
  config.update_from_flattened_dict(values)


def allowed(table: Table) -> dict[str, settings.Allowed]:
  """Returns the allowed values of the keys, without sections."""
  return {
    name: entry.allowed
    for name, entry in table.items()
    if isinstance(entry, Key)
  }
