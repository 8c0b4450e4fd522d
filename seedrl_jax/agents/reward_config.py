"""The configuration keys of the scale of rewards, which agents share."""

from seedrl_jax import types
from seedrl_jax.runtime.keys import Key, Table
from seedrl_jax.runtime.settings import FLAG, number

KEYS: Table = {
  'loss.reward_clip': Key(
    0.0, number(0), 'Clips rewards to [-x, x] in the loss. 0 means no clipping.'
  ),
  'loss.reward_scale': Key(
    1.0,
    number(),
    'Multiplies (clipped) rewards in the loss. Aim for returns of a few '
    'units; reports are in the units of the environment.',
  ),
}
# Of agents with a value head.
POPART_KEYS: Table = {
  'network.popart': Key(
    False,
    FLAG,
    'Normalises the targets of the value head by the mean and deviation of '
    'returns (PopArt, arXiv 1809.04474), for rewards of any scale.',
  ),
}
# Keys that change the scale of rewards, too.
_OTHER_SCALES = ['env.reward_clip', 'loss.reward_clip', 'normalization.rewards']


def uses_popart(config: types.Config) -> bool:
  """Returns whether a run takes PopArt.

  Raises:
    ValueError: if another key normalises or clips rewards.
  """
  # Runs of earlier releases lack the key.
  if not config.network.get('popart', False):
    return False
  for key in _OTHER_SCALES:
    section, _, name = key.partition('.')
    value = config.get(section, {}).get(name, False)
    if value:
      raise ValueError(
        f'--config.network.popart=True: --config.{key}={value} changes the '
        f'scale of rewards, which PopArt learns; give {type(value)(0)}.'
      )
  return True
