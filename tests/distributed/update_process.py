"""Updates on the same data over one process or several, for test_update_hosts.

`update_process.py <index> <count> <coordinator> <folder>` writes the parameters
after a few updates, the priorities, and statistics of other numbers to
`<folder>/<index>of<count>.npz`.
"""

import pathlib
import sys
from typing import Any

import jax
import numpy as np

from seedrl_jax.agents import base, normalization
from seedrl_jax.distributed import hosts
from seedrl_jax.learner import update
from tests.learner import toys

_UPDATES = 4
_WIDTH = 3  # unrolls for each device
_DEVICES = 4


def train() -> dict[str, Any]:
  """Returns parameters, this host's priorities, and fingerprints."""
  # All devices train.
  devices = sorted(jax.devices(), key=lambda device: device.process_index)
  agent = toys.make_agent()
  updater = update.Updater(agent, devices)
  state = updater.replicate(update.initial_state(agent, jax.random.PRNGKey(7)))
  updater.connect()
  rng = np.random.default_rng(3)
  for _ in range(_UPDATES):
    pieces = [
      toys.batch_of(rng.normal(size=_WIDTH))._replace(
        weight=rng.uniform(0.5, 2, _WIDTH).astype(np.float32)
      )
      for _ in range(_DEVICES)
    ]
    own = [
      piece
      for piece, device in zip(pieces, devices, strict=True)
      if device in updater.local_devices
    ]
    state, output, params = updater(state, updater.shard(own), 1.0)
  leaves = jax.tree.leaves(update.first_shard(params))
  leaves += jax.tree.leaves(update.host_state(state).agent)
  result = {f'leaf{i}': x for i, x in enumerate(leaves)}
  result['prints'] = updater.fingerprints(state)
  result['priorities'] = update.local_rows(output.priorities)
  return result


def statistics() -> dict[str, Any]:
  """Returns those on each of this host's devices, and NumPy's."""
  devices = sorted(jax.devices(), key=lambda device: device.process_index)
  own = [i for i, d in enumerate(devices) if d in jax.local_devices()]
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
  merged = merge(x[own], counts[own])
  rows = [
    np.concatenate([np.ravel(leaf.addressable_data(i)) for leaf in merged])
    for i in range(len(own))
  ]
  return {
    'statistics': np.stack(rows),
    'moments': [counts.sum(), *x[counts].mean(0), *x[counts].var(0)],
  }


def main() -> None:
  """Joins, trains, writes, and leaves with the others."""
  index, count, address, folder = sys.argv[1:]
  coordinator = hosts.join(address, int(count), int(index), timeout=300.0)
  result: dict[str, Any] = {}
  # Runs in step with the other host.
  coordinator.compile(
    lambda: None,
    lambda: result.update(train() | statistics()),
    wanted=True,
  )
  np.savez(pathlib.Path(folder) / f'{index}of{count}.npz', **result)
  coordinator.leave()


if __name__ == '__main__':
  main()
