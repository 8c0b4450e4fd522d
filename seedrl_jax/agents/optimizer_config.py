"""The configuration keys of the optimiser, which agents share."""

import ml_collections

from seedrl_jax.runtime import keys
from seedrl_jax.runtime.keys import Key, Section, Table
from seedrl_jax.runtime.settings import FLAG, integer, number, one_of, optional

KEYS: Table = {
  'optimizer': Section(
    'The optimiser. Gradients are first clipped by their global norm.'
  ),
  'optimizer.name': Key(
    'adam',
    one_of('adam', 'radam', 'rmsprop', 'adagrad', 'sgd'),
    'The optimiser. RAdam is from arXiv 1908.03265.',
  ),
  'optimizer.learning_rate': Key(
    1e-3, number(0), 'The learning rate, at the start if it decays.'
  ),
  'optimizer.schedule': Key(
    'linear',
    one_of('linear', 'constant'),
    "'linear' decays the learning rate to `final_learning_rate` over "
    "`decay_frames`; 'constant' keeps it.",
  ),
  'optimizer.final_learning_rate': Key(
    0.0, number(0), 'The learning rate at the end of the linear schedule.'
  ),
  'optimizer.decay_frames': Key(
    None,
    optional(integer(1, 10**15)),
    'Frames until the linear schedule reaches `final_learning_rate`. None '
    'means `total_env_frames`. All configurations with a linear schedule set '
    'it, so that a longer run has the same learning rate at the same frame.',
    int,
  ),
  'optimizer.warmup_frames': Key(
    0,
    integer(0, 10**15),
    'Frames over which a factor on the learning rate rises linearly from 0 '
    'to 1. 0 means no warm-up.',
  ),
  'optimizer.clip_norm': Key(
    40.0, number(0), 'Maximum global norm of the gradient. 0 means no clipping.'
  ),
  'optimizer.adam_b1': Key(
    0.9, number(0, below=1), 'Decay of the mean gradient of Adam and RAdam.'
  ),
  'optimizer.adam_b2': Key(
    0.999,
    number(0, below=1),
    'Decay of the mean squared gradient of Adam and RAdam.',
  ),
  'optimizer.epsilon': Key(
    1e-8,
    number(0),
    'Added to the denominator of the update, inside or outside the root.',
  ),
  'optimizer.epsilon_inside_root': Key(
    False,
    FLAG,
    'True divides by sqrt(v + epsilon), as RMSProp of TensorFlow; False by '
    'sqrt(v) + epsilon, as RMSProp of PyTorch and Adam.',
  ),
  'optimizer.rmsprop_decay': Key(
    0.99, number(0, below=1), 'Decay of the mean squared gradient of RMSProp.'
  ),
  'optimizer.rmsprop_momentum': Key(
    0.0, number(0, below=1), 'Momentum of RMSProp.'
  ),
  'optimizer.rmsprop_centered': Key(
    False,
    FLAG,
    "Divides by the gradient's standard deviation, not its root mean square.",
  ),
  'optimizer.rmsprop_initial_scale': Key(
    0.0,
    number(0),
    'First mean squared gradient: 1 in TensorFlow, 0 in PyTorch.',
  ),
  'optimizer.sgd_momentum': Key(0.0, number(0, below=1), 'Momentum of SGD.'),
}
# For tables `RANGES` of agents that declare no `KEYS`.
RANGES = keys.allowed(KEYS)


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Adds the section `optimizer`."""
  keys.set_defaults(config, KEYS)
