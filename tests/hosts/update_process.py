"""Updates on the same data over one process or several, for test_update_hosts.

`update_process.py <index> <count> <coordinator> <folder>` writes the parameters
of several agents after a few updates, priorities, and statistics of other
numbers to `<folder>/<index>of<count>.npz`.
"""

import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base, normalization
from seedrl_jax.configs import ppo_pendulum, sac_pendulum
from seedrl_jax.hosts import joining
from seedrl_jax.learner import update
from tests import runs
from tests.agents import sequences
from tests.learner import toys

_UPDATES = 4
_WIDTH = 4  # unrolls for each device
_DEVICES = 4
_AGENTS = {
  'ppo': (ppo_pendulum.get_config, {'epochs': 2, 'minibatches': 2}),
  'sac': (sac_pendulum.get_config, {'updates_per_call': 2}),
}


def train(
  name: str, agent: base.Agent, make_piece: Callable[..., types.Batch]
) -> dict[str, Any]:
  """Returns parameters, fingerprints, and this host's priorities if any."""
  # All devices train.
  devices = sorted(jax.devices(), key=lambda device: device.process_index)
  updater = update.Updater(agent, devices)
  state = updater.replicate(update.initial_state(agent, jax.random.PRNGKey(7)))
  updater.connect()
  rng = np.random.default_rng(3)
  before = update.host_state(state).agent
  for _ in range(_UPDATES):
    pieces = [
      make_piece(rng)._replace(
        weight=rng.uniform(0.5, 2, _WIDTH).astype(np.float32)
      )
      for _ in range(_DEVICES)
    ]
    local = [
      piece
      for piece, device in zip(pieces, devices, strict=True)
      if device in updater.local_devices
    ]
    state, output, params, _ = updater(state, updater.shard(local), 0.5)
  after = update.host_state(state).agent
  changed = jax.tree.map(lambda a, b: (a != b).any(), before, after)
  assert np.mean(jax.tree.leaves(changed)) > 0.9, changed
  leaves = jax.tree.leaves((update.first_shard(params), after))
  result = {f'leaf {name} {i}': x for i, x in enumerate(leaves)}
  result[f'prints {name}'] = updater.fingerprints(state)
  if output.priorities is not None:
    result['priorities'] = update.local_rows(output.priorities)
  return result


def train_all() -> dict[str, Any]:
  """Returns the results of `train` of a toy and of the agents."""
  result = train(
    'toy', toys.make_agent(), lambda rng: toys.batch_of(rng.normal(size=_WIDTH))
  )
  for name, (make, values) in _AGENTS.items():
    result |= train(name, *_agent(runs.tiny(make, **values)))
  return result


def _agent(
  config: ml_collections.ConfigDict,
) -> tuple[base.Agent, Callable[..., types.Batch]]:
  """Returns an agent, and a function for random unrolls."""
  action = types.ActionSpec((2,), np.dtype('f4'), (-1.0, -1.0), (1.0, 1.0))
  observation = types.ArraySpec((2,), np.dtype('f4'))
  env_spec = types.EnvSpec(
    types.StreamSpec(observation, action, 1, 'toy'), 16, 0
  )
  agent = base.load_agent(config, env_spec)

  def random(rng: np.random.Generator) -> types.Batch:
    return sequences.random_batch(
      rng, agent, env_spec, config.unroll_length, _WIDTH
    )

  return agent, random


def statistics() -> dict[str, Any]:
  """Returns those on each of this host's devices, and NumPy's."""
  devices = sorted(jax.devices(), key=lambda device: device.process_index)
  local = [i for i, d in enumerate(devices) if d in jax.local_devices()]
  merge = jax.pmap(
    lambda x, counts: normalization.merge(
      normalization.initial((2,)), x, counts
    ),
    axis_name=base.AXIS,
    devices=devices,
  )
  rng = np.random.default_rng(4)
  x = rng.normal(3.0, 2.0, (_DEVICES, 5, 6, 2)).astype(np.float32)
  counts = rng.random((_DEVICES, 5, 6)) < 0.5
  merged = merge(x[local], counts[local])
  rows = [
    np.concatenate([np.ravel(leaf.addressable_data(i)) for leaf in merged])
    for i in range(len(local))
  ]
  return {
    'statistics': np.stack(rows),
    'moments': [counts.sum(), *x[counts].mean(0), *x[counts].var(0)],
  }


def main() -> None:
  """Joins, trains, writes, and leaves with the others."""
  index, count, address, folder = sys.argv[1:]
  coordinator = joining.join(address, int(count), int(index), timeout=300.0)
  result: dict[str, Any] = {}
  # Synchronous with the other host.
  coordinator.compile(
    lambda: None,
    lambda: result.update(train_all() | statistics()),
    is_needed=True,
  )
  np.savez(pathlib.Path(folder) / f'{index}of{count}.npz', **result)
  coordinator.leave()


if __name__ == '__main__':
  main()
