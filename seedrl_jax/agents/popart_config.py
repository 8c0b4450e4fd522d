"""The configuration key of PopArt, which agents with a value head share."""

from seedrl_jax import types
from seedrl_jax.runtime.keys import Key, Table
from seedrl_jax.runtime.settings import FLAG

KEYS: Table = {
  'network.popart': Key(
    False,
    FLAG,
    'Normalises the targets of the value head by the mean and deviation of '
    'returns (PopArt, arXiv 1809.04474), for rewards of any scale.',
  ),
}
# Keys that change the scale of rewards, too.
_OTHERS = ['env.reward_clip', 'loss.reward_clip', 'normalization.rewards']


def is_used(config: types.Config) -> bool:
  """Returns whether a run takes PopArt, which runs of earlier releases lack.

  Raises:
    ValueError: if another key normalises or clips rewards.
  """
  if not config.network.get('popart', False):
    return False
  for key in _OTHERS:
    section, _, name = key.partition('.')
    value = config.get(section, {}).get(name, False)
    if value:
      raise ValueError(
        f'--config.network.popart=True: --config.{key}={value} changes the '
        f'scale of rewards, which PopArt learns; give {type(value)(0)}.'
      )
  return True
