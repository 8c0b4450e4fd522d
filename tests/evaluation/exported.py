"""Plays an exported policy with JAX alone.

As a program, it reads observations from standard input and prints actions.
"""

import json
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
from jax import export


def play(folder: pathlib.Path, observations: Sequence) -> np.ndarray:
  """Returns the actions for observations `[T, B, ...]` of an episode."""
  function = export.deserialize((folder / 'policy.stablehlo').read_bytes())
  description = json.loads((folder / 'policy.json').read_text())

  def zeros(spec: dict) -> np.ndarray:
    return np.zeros(spec['shape'], spec['dtype'])

  inputs = {name: zeros(x) for name, x in description['inputs'].items()}
  state = [zeros(x) for x in description['state']]
  inputs['first'][:] = True
  actions = []
  for observation in observations:
    # Not in place: JAX may still read the arrays of the call before.
    dtype = inputs['observation'].dtype
    inputs['observation'] = np.array(observation, dtype)
    action, state = function.call(inputs, state)
    inputs['first'] = np.zeros_like(inputs['first'])
    assert (list(action.shape), action.dtype.name) == (
      description['action']['shape'],
      description['action']['dtype'],
    )
    actions.append(np.asarray(action))
  return np.stack(actions)


if __name__ == '__main__':
  # Importing one of these would fail.
  sys.modules |= dict.fromkeys(('seedrl_jax', 'flax', 'envpool'))
  out = play(pathlib.Path(sys.argv[1]), json.load(sys.stdin))
  print(json.dumps(out.tolist()))
