"""The configuration keys of `optimizers`."""

import ml_collections
from ml_collections import config_dict

from seedrl_jax.runtime.settings import (
  FLAG,
  Allowed,
  integer,
  number,
  one_of,
  optional,
)

RANGES: dict[str, Allowed] = {
  'optimizer.name': one_of('adam', 'radam', 'rmsprop', 'adagrad', 'sgd'),
  'optimizer.learning_rate': number(0),
  'optimizer.schedule': one_of('linear', 'constant'),
  'optimizer.final_learning_rate': number(0),
  'optimizer.decay_frames': optional(integer(1, 10**15)),
  'optimizer.clip_norm': number(0),
  'optimizer.adam_b1': number(0, below=1),
  'optimizer.adam_b2': number(0, below=1),
  'optimizer.epsilon': number(0),
  'optimizer.epsilon_inside_root': FLAG,
  'optimizer.rmsprop_decay': number(0, below=1),
  'optimizer.rmsprop_momentum': number(0, below=1),
  'optimizer.rmsprop_centered': FLAG,
  'optimizer.rmsprop_initial_scale': number(0),
  'optimizer.sgd_momentum': number(0, below=1),
}


def set_defaults(config: ml_collections.ConfigDict) -> None:
  """Sets the section `optimizer`."""
  config.optimizer = _optimizer()


def _optimizer() -> ml_collections.ConfigDict:
  """The optimiser, after a clip of the gradient's global norm."""
  return ml_collections.ConfigDict({
    # 'adam', 'radam' (arXiv 1908.03265), 'rmsprop', 'adagrad', 'sgd'.
    'name': 'adam',
    'learning_rate': 1e-3,
    # 'linear' decays to final_learning_rate over decay_frames; 'constant'.
    'schedule': 'linear',
    'final_learning_rate': 0.0,
    # Frames until the linear schedule reaches final_learning_rate. None means
    # total_env_frames. All configurations with a linear schedule set it, so
    # that a longer run has the same learning rate at the same frame.
    'decay_frames': config_dict.placeholder(int),
    'clip_norm': 40.0,  # 0: none
    'adam_b1': 0.9,  # and of RAdam
    'adam_b2': 0.999,
    'epsilon': 1e-8,
    # True: sqrt(v + epsilon), as in TensorFlow's RMSProp; False: sqrt(v) +
    # epsilon, as in PyTorch's RMSProp and in Adam.
    'epsilon_inside_root': False,
    'rmsprop_decay': 0.99,
    'rmsprop_momentum': 0.0,
    'rmsprop_centered': False,
    # First mean square: TensorFlow starts at 1, PyTorch at 0.
    'rmsprop_initial_scale': 0.0,
    'sgd_momentum': 0.0,
  })
