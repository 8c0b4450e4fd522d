"""The configuration keys of networks, from observations to features."""

from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import (
  COUNT,
  FLAG,
  UNITS,
  each,
  integer,
  number,
  one_of,
)

TORSOS = ('auto', 'mlp', 'resnet', 'nature', 'shallow', 'tiny', 'grid')

KEYS: Table = {
  'network': Section('The network, from observations to features.'),
  'network.torso': Key(
    'auto',
    one_of(*TORSOS, or_function=True),
    "The torso. 'auto' chooses by the shape of the observation; a run prints "
    "its choice at the start. 'module:function' maps this section to a Flax "
    'module from [N, ...] to [N, F].',
  ),
  'network.hidden_sizes': Key(
    (64, 64), each(integer(1, UNITS)), "Units of each layer of 'mlp'."
  ),
  'network.activation': Key(
    'relu',
    one_of('relu', 'tanh'),
    "The activation of all torsos except 'resnet', which has ReLU.",
  ),
  'network.layer_norm': Key(
    False, FLAG, "Applies layer norm before each activation. 'resnet' has none."
  ),
  'network.dense_size': Key(
    0,
    integer(0, UNITS),
    "Output size of a convolutional torso. 0 means its own: 512 for 'nature', "
    "256 for 'shallow' and 'resnet', 64 for 'tiny' and 'grid'.",
  ),
  'network.width': Key(
    1, integer(1, 1000), "Multiplies the channels of 'resnet'."
  ),
  'network.resnet_channels': Key(
    (16, 32, 32),
    each(integer(1, 10**4)),
    "Channels of each section of 'resnet'.",
  ),
  'network.frame_stack': Key(
    1,
    integer(1, 1000),
    "Frames that are stacked in the agent's state. 1 means no stacking.",
  ),
  'network.tpu_chunk': Key(
    0,
    integer(0, COUNT),
    'Images that pass through a torso together on a TPU. Their features stay '
    'on the chip, and are computed again for the gradient. 0 means all.',
  ),
  'network.image_layout': Key(
    'auto',
    one_of('auto', 'channels_first', 'channels_last'),
    "The axes of images. 'auto' takes as height and width the adjacent axes "
    'whose smaller one is largest, preferring a square pair.',
  ),
  'network.categories': Key(
    'auto',
    one_of('auto', 'on', 'off'),
    'Whether the bytes of images with fewer than 32 pixels a side are '
    "categories, which get 16 one-hot levels per channel. 'auto' means on "
    'for MiniGrid, BabyAI and Sokoban.',
  ),
  'network.use_action_mask': Key(
    False,
    FLAG,
    'Passes the action mask to the network as an input, too. Without it the '
    'mask only forbids actions.',
  ),
  'network.use_task': Key(
    False,
    FLAG,
    'Passes the number of the task (`env.tasks`), one-hot, to the core, or '
    'to the heads if there is none.',
  ),
  'network.normalize_pixels': Key(
    False,
    FLAG,
    'Normalises each pixel of an image of bytes by its running mean and '
    'standard deviation, and clips it to [-5, 5].',
  ),
  'network.lstm_size': Key(
    0, integer(0, UNITS), 'Units of the LSTM. 0 means no recurrent core.'
  ),
  'network.use_previous_action': Key(
    False,
    FLAG,
    'Passes the previous action and reward to the core, or to the heads if '
    'there is none.',
  ),
  'network.previous_reward_clip': Key(
    1.0, number(0), 'Clips the previous reward to [-x, x]. 0 means no clipping.'
  ),
  'network.compute_dtype': Key(
    'float32',
    one_of('float32', 'bfloat16'),
    'The type of activations. Parameters are float32.',
  ),
}
