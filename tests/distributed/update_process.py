"""Updates on the same data over one process or several, for test_update_hosts.

`update_process.py <index> <count> <coordinator> <folder>` writes the parameters
after a few updates, and the priorities, to `<folder>/<index>.npz`.
"""

import pathlib
import sys

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.distributed import hosts as hosts_lib
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import specs
from seedrl_jax.learner import state as state_lib
from seedrl_jax.learner import topology, update
from tests import runs
from tests.learner import toys

_UPDATES = 4
_WIDTH = 3  # unrolls for each device
_DEVICES = 4


def vtrace() -> tuple[agents.Agent, types.Unroll]:
  """Returns V-trace's agent and the spec of its unrolls."""
  config = runs.tiny(batch_size=_WIDTH * _DEVICES)
  spec = env_factory.make_env_spec(config)
  agent = agents.load_agent(config, spec)
  output = specs.output_spec(agent, spec, agent.params_shapes())
  core = specs.core_spec(agent)
  return agent, specs.unroll_spec(spec, 5, output, core)


def random_batch(rng: np.random.Generator, spec: types.Unroll) -> types.Batch:
  """Returns one device's piece of a batch."""

  def fill(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind == 'f':
      return rng.normal(size=x.shape).astype(x.dtype)
    return rng.integers(0, 2, x.shape).astype(x.dtype)

  batch = jax.tree.map(fill, specs.blank_batch(spec, _WIDTH))
  batch.unroll.steps.discount[:] = 1
  return batch._replace(weight=rng.uniform(0.5, 2, _WIDTH).astype(np.float32))


def train(
  agent: agents.Agent, spec: types.Unroll
) -> tuple[list[np.ndarray], np.ndarray, list[int]]:
  """Returns parameters, this host's priorities, and fingerprints."""
  # All devices train.
  devices = [
    d
    for host in range(jax.process_count())
    for d in jax.devices()
    if d.process_index == host
  ]
  updater = update.Updater(agent, devices)
  state = updater.replicate(
    state_lib.initial_state(agent, jax.random.PRNGKey(7))
  )
  updater.connect()
  rng = np.random.default_rng(3)
  priorities = np.zeros(0, np.float32)
  for _ in range(_UPDATES):
    pieces = [random_batch(rng, spec) for _ in range(_DEVICES)]
    own = [
      piece
      for piece, device in zip(pieces, devices, strict=True)
      if device in updater.local_devices
    ]
    state, output, params = updater(state, updater.shard(own), 1.0)
    if output.priorities is not None:
      priorities = update.local_rows(output.priorities)
  acting = jax.tree.leaves(update.first_shard(params))
  leaves = [*acting, *jax.tree.leaves(update.host_state(state).agent)]
  return leaves, priorities, updater.fingerprints(state)


def main() -> None:
  """Joins, trains both agents, writes, and leaves with the others."""
  index, count, coordinator, folder = sys.argv[1:]
  hosts = hosts_lib.join(coordinator, int(count), int(index), timeout=300.0)
  assert len(topology.all_training('1:1', jax.devices())) == _DEVICES // 2
  result = {}
  for name, (agent, spec) in {
    'vtrace': vtrace(),
    'toy': (toys.make_agent(), toys.unroll_spec()),
  }.items():
    if hosts is not None:
      hosts.votes.gather('connect')
    params, priorities, prints = train(agent, spec)
    result |= {f'{name}{i}': x for i, x in enumerate(params)}
    result |= {f'{name}_prints': prints, f'{name}_priorities': priorities}
  np.savez(pathlib.Path(folder) / f'{index}of{count}.npz', **result)
  if hosts is not None:
    hosts.detach()
    hosts.votes.gather('done')
    hosts.leave()


if __name__ == '__main__':
  main()
