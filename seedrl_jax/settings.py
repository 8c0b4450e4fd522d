"""Looks up and checks the keys of a configuration by their dotted names.

`runtime.checks` and the agents call it, each for keys of its own.
"""

import math
from collections.abc import Mapping
from typing import Any

# Least and most that a key may be.
Range = tuple[float, float]

ANY: Range = (-math.inf, math.inf)


def get(config: Any, key: str) -> Any:
  """Returns the value of a key, as 'batch_size' or 'replay.max_size'.

  Raises:
    KeyError: where there is none.
  """
  section, _, name = key.rpartition('.')
  return (config[section] if section else config)[name]


def at_least(least: float) -> Range:
  """Returns the range from `least` on."""
  return least, math.inf


def check_ranges(config: Any, ranges: Mapping[str, Range]) -> None:
  """Checks that keys are in their ranges, ends included.

  Args:
    config: the run's configuration.
    ranges: by dotted key.

  Raises:
    ValueError: naming the flag and what would do.
    KeyError: where a key is missing.
  """
  for key, (least, most) in ranges.items():
    value = get(config, key)
    # A value that is no number fails every comparison.
    if not least <= value <= most:
      allowed = _describe((least, most))
      raise ValueError(f'--config.{key}={value}: give {allowed}.')


def _describe(allowed: Range) -> str:
  least, most = allowed
  if allowed == ANY:
    return 'a number'
  return f'at least {least}' if most == math.inf else f'{least} to {most}'
