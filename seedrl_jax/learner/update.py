"""The update: loss, gradient and optimiser on all training devices.

The one place that calls `jax.pmap`, of what `device_update` makes for each
device. Devices may be of several hosts: each places, and reads, only what is on
its own.
"""

import functools
from collections.abc import Sequence

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.learner import device_update, fingerprint
from seedrl_jax.learner import state as state_lib


class Updater:
  """Runs updates over a set of training devices."""

  def __init__(
    self,
    agent: base.Agent,
    optimizer: optax.GradientTransformation,
    devices: Sequence[jax.Device],
    micro_batches: int = 1,
  ):
    """Makes an updater.

    Args:
      agent: whose `loss` to minimise.
      optimizer: applied to the mean gradient.
      devices: the training devices of all hosts, in the same order on each.
      micro_batches: equal pieces that a device works its share through in.
    """
    self._devices = tuple(devices)
    own = jax.process_index()
    self._local = tuple(d for d in devices if d.process_index == own)
    self._fingerprint = jax.jit(fingerprint.fingerprint)
    self._sharding = NamedSharding(
      Mesh(np.array(self._devices), (device_update.AXIS,)),
      PartitionSpec(device_update.AXIS),
    )
    pmap = functools.partial(
      jax.pmap, axis_name=device_update.AXIS, devices=self._devices
    )
    cut = device_update.make_cut(agent, micro_batches)
    accumulate = device_update.make_accumulate(agent)
    finish = device_update.make_finish(
      agent, optimizer, micro_batches, device_update.mean_over(self._devices)
    )
    if micro_batches == 1:
      self._update = pmap(
        device_update.chain(cut, accumulate, finish),
        in_axes=(0, 0, None),
        donate_argnums=0,
      )
    else:
      # Each piece in a call of its own: in one program XLA works on all of them
      # at once, with the temporary memory of all, and a thread other than the
      # main one gives back to the system whatever is over 64 MB.
      self._update = device_update.chain(
        pmap(cut),
        pmap(accumulate, donate_argnums=0),
        pmap(finish, in_axes=(0, 0, 0, None), donate_argnums=0),
      )

  @property
  def devices(self) -> tuple[jax.Device, ...]:
    """The training devices of all hosts, in the order of the leading axis."""
    return self._devices

  @property
  def local_devices(self) -> tuple[jax.Device, ...]:
    """Those of this host."""
    return self._local

  def replicate(self, state: state_lib.LearnerState) -> state_lib.LearnerState:
    """Puts a state without device axis on every training device."""

    def put(x: types.Array) -> jax.Array:
      row = np.asarray(x)[None]
      return self._join([jax.device_put(row, d) for d in self._local])

    return jax.tree.map(put, state)

  def _join(self, rows: Sequence[jax.Array]) -> jax.Array:
    """Returns the array of which each of this host's devices has one row."""
    shape = (len(self._devices), *rows[0].shape[1:])
    return jax.make_array_from_single_device_arrays(
      shape, self._sharding, list(rows)
    )

  def connect(self) -> None:
    """Lets the devices of all hosts find each other; called by all at once.

    CPUs have 30 s for that. In the first update, one host could take longer
    than that to compile than another.
    """
    meet = jax.pmap(
      lambda x: jax.lax.psum(x, device_update.AXIS),
      axis_name=device_update.AXIS,
      devices=self._devices,
    )
    rows = [jax.device_put(np.ones((1, 1)), d) for d in self._local]
    jax.block_until_ready(meet(self._join(rows)))

  def shard(self, pieces: Sequence[types.Batch]) -> types.Batch:
    """Puts one piece of a batch on each of this host's training devices.

    Args:
      pieces: for each of them a `Batch` of host arrays, laid out for training.

    Returns:
      A `Batch` whose leaves lead with `[D]`, one row on each device. A single
      CPU reads the host's memory itself: there it is `pieces[0]` unmoved.
    """
    if len(self._devices) == 1 and self._devices[0].platform == 'cpu':
      (piece,) = pieces
      return jax.tree.map(lambda x: x[None], piece)
    placed = [
      jax.tree.leaves(
        jax.device_put(jax.tree.map(lambda x: x[None], piece), device)
      )
      for piece, device in zip(pieces, self._local, strict=True)
    ]
    treedef = jax.tree.structure(pieces[0])
    leaves = [self._join(rows) for rows in zip(*placed, strict=True)]
    return jax.tree.unflatten(treedef, leaves)

  def fingerprints(self, state: state_lib.LearnerState) -> list[int]:
    """Returns a number for the state on each of this host's devices.

    All that is in it counts, to the last bit: equal states have equal numbers,
    and others, but by a chance of 2^-32, have not.
    """
    leaves = jax.tree.leaves(state)
    return [
      int(self._fingerprint([x.addressable_data(i) for x in leaves]))
      for i in range(len(self._local))
    ]

  def __call__(
    self,
    state: state_lib.LearnerState,
    batch: types.Batch,
    learning_rate: float,
  ) -> tuple[state_lib.LearnerState, state_lib.UpdateOutput]:
    """Runs one update.

    Args:
      state: is donated and must not be used again.
      batch: as `shard` gives it.
      learning_rate: multiplies what the optimiser makes of the gradient; the
        same on all hosts.
    """
    return self._update(state, batch, np.float32(learning_rate))


def first_shard(tree: types.Nest) -> types.Nest:
  """Returns this host's first device's part, leaves `[1, ...]`, not copied."""
  return jax.tree.map(lambda x: x.addressable_data(0), tree)


def local_rows(x: jax.Array) -> np.ndarray:
  """Fetches what this host's devices have of an array `[D, B / D]`, flat."""
  shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
  return np.concatenate([np.asarray(s.data)[0] for s in shards])


def host_state(state: state_lib.LearnerState) -> state_lib.LearnerState:
  """Fetches a state from this host's first device, without device axis."""
  return jax.tree.map(lambda x: x[0], jax.device_get(first_shard(state)))
