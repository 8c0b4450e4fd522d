"""Names the algorithm of a run, and its colour, the same in every figure."""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colors

# Wong 2011 and Tol 2021; they suit every kind of colour vision.
_COLORS = {
  'vtrace': '#0072b2',
  'ppo': '#d55e00',
  'r2d2': '#009e73',
  'dqn': '#cc79a7',
  'sac': '#e69f00',
  'pqn': '#56b4e9',
  'dyna_q': '#882255',
  'a2c': '#332288',
  'a3c': '#117733',
  'apex': '#999933',
  'r2d3': '#44aa99',
}
# For agents of users' own.
_OTHERS = ('#666666', '#aa4499', '#b8860b', '#8b5a2b')
# Variants are mixed with up to this share of black or white.
_MIXED = 0.5


def name(config: Mapping[str, Any]) -> str:
  """Returns the algorithm of `config.json`: its agent, or a variant of that.

  The agents vtrace and r2d2 are several algorithms. An agent of a user's own is
  called by its module, and no configuration is ''.
  """
  agent = config.get('agent', '')
  if agent == 'vtrace' and config['learner'].get('max_lag') == 0:
    return 'a2c'
  if agent != 'r2d2':
    return agent
  if config['network'].get('lstm_size'):
    has_demonstrations = config.get('demonstrations', {}).get('fraction')
    return 'r2d3' if has_demonstrations else 'r2d2'
  return 'dqn' if config['replay'].get('sampler') == 'uniform' else 'apex'


def shades(names: Sequence[str]) -> Iterator[str]:
  """Yields a colour for each algorithm's name.

  A name always has the same colour. If it is there several times, as that of
  variants, they are shades of its colour, from dark to light.
  """
  counts, positions = Counter(names), Counter[str]()
  for algorithm in names:
    shares = np.linspace(-_MIXED, _MIXED, counts[algorithm])
    share = shares[positions[algorithm]] if counts[algorithm] > 1 else 0.0
    positions[algorithm] += 1
    end = 1.0 if share > 0 else 0.0
    rgb = np.array(colors.to_rgb(_color(algorithm)))
    yield colors.to_hex(rgb + abs(share) * (end - rgb))


def _color(algorithm: str) -> str:
  i = zlib.crc32(algorithm.encode()) % len(_OTHERS)
  return _COLORS.get(algorithm, _OTHERS[i])
