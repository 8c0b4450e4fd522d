"""The configuration keys of rewards in the loss, which agents share."""

from seedrl_jax.runtime.keys import Key, Table
from seedrl_jax.runtime.settings import number

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
