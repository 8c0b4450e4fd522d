"""Checks of the configuration that R2D2 makes before anything is built."""

import math
from typing import Any

REDUCTIONS = ('sum', 'mean')
INITIAL_STATES = ('stored', 'zero')

# Keys that are numbers, and the range that makes sense.
_RANGES: dict[str, tuple[float, float]] = {
  'burn_in': (0, math.inf),
  'lookahead': (0, math.inf),
  'network.head_hidden_size': (0, math.inf),
  'loss.n_steps': (1, math.inf),
  'loss.discount': (0, 1),
  'loss.rescale_epsilon': (-math.inf, math.inf),
  'loss.huber_delta': (0, math.inf),
  'loss.reward_clip': (0, math.inf),
  'loss.reward_scale': (-math.inf, math.inf),
  'loss.priority_eta': (0, 1),
  'loss.target_update_period': (1, math.inf),
  'exploration.epsilon_base': (0, 1),
  'exploration.epsilon_alpha': (0, math.inf),
  'exploration.eval_epsilon': (0, 1),
}
_CHOICES: dict[str, tuple[Any, ...]] = {
  'network.dueling': (True, False),
  'loss.double_q': (True, False),
  'loss.reduction': REDUCTIONS,
  'loss.initial_state': INITIAL_STATES,
}
# Sections in which a key that is not above is a mistake.
_OWN_SECTIONS = ('loss', 'exploration')


def check(config: Any) -> None:
  """Checks the run's configuration.

  Raises:
    ValueError: where a key is missing, unknown or out of its range; names the
      flag and what would do.
  """
  known = (*_RANGES, *_CHOICES)
  for key in known:
    _require(config, key)
  for section in _OWN_SECTIONS:
    for name in config[section]:
      if f'{section}.{name}' not in known:
        raise ValueError(
          f'--config.{section}.{name} means nothing to R2D2; start from '
          'configs/r2d2_base.py.'
        )
  for key, (least, most) in _RANGES.items():
    value = _get(config, key)
    if not least <= value <= most:
      allowed = (
        f'at least {least}' if most == math.inf else f'{least} to {most}'
      )
      raise ValueError(f'--config.{key}={value}: give {allowed}.')
  for key, choices in _CHOICES.items():
    value = _get(config, key)
    if value not in choices:
      raise ValueError(f'--config.{key}={value}: choose one of {choices}.')


def _get(config: Any, key: str) -> Any:
  section, _, name = key.rpartition('.')
  return (config[section] if section else config)[name]


def _require(config: Any, key: str) -> None:
  try:
    _get(config, key)
  except KeyError as e:
    raise ValueError(
      f'--config.agent={config.agent}: R2D2 needs --config.{key}; start from '
      'configs/r2d2_base.py.'
    ) from e
