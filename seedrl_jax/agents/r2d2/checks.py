"""Checks of the configuration that R2D2 makes before anything is built."""

from typing import Any

from seedrl_jax import settings

REDUCTIONS = ('sum', 'mean')
INITIAL_STATES = ('stored', 'zero')

# Keys that are numbers, and the range that makes sense.
_RANGES: dict[str, settings.Range] = {
  'burn_in': settings.at_least(0),
  'lookahead': settings.at_least(0),
  'network.head_hidden_size': settings.at_least(0),
  'loss.n_steps': settings.at_least(1),
  'loss.discount': (0, 1),
  'loss.rescale_epsilon': settings.ANY,
  'loss.huber_delta': settings.at_least(0),
  'loss.reward_clip': settings.at_least(0),
  'loss.reward_scale': settings.ANY,
  'loss.priority_eta': (0, 1),
  'loss.target_update_period': settings.at_least(1),
  'exploration.epsilon_base': (0, 1),
  'exploration.epsilon_alpha': settings.at_least(0),
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
  settings.check_ranges(config, _RANGES)
  for key, choices in _CHOICES.items():
    value = settings.get(config, key)
    if value not in choices:
      raise ValueError(f'--config.{key}={value}: choose one of {choices}.')


def _require(config: Any, key: str) -> None:
  try:
    settings.get(config, key)
  except KeyError as e:
    raise ValueError(
      f'--config.agent={config.agent}: R2D2 needs --config.{key}; start from '
      'configs/r2d2_base.py.'
    ) from e
