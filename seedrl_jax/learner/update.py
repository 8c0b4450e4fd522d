"""The update: loss, gradient and optimiser on all training devices.

The one place that calls `jax.pmap`. The per-device function is pure and knows
of other devices only through the mean over `AXIS`. Devices may be of several
hosts: each places, and reads, only what is on its own.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import flatten_util
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seedrl_jax import types
from seedrl_jax.agents import base

AXIS = 'learner'


class LearnerState(NamedTuple):
  """What training changes; on the devices every leaf leads with `[D]`.

  Attributes:
    params: of the agent.
    target_params: of its target network, or () where it has none.
    opt_state: of the optimiser.
    step: int32, updates so far.
    key: PRNG key, uint32 `[2]`.
  """

  params: base.Params
  target_params: base.Params
  opt_state: Any
  step: jax.Array
  key: jax.Array


class UpdateOutput(NamedTuple):
  """What an update gives besides the next state; leaves lead with `[D]`.

  Attributes:
    params: a copy of the new parameters that no later update donates.
    metrics: float32 scalars by name.
    finite: bool, whether loss, gradient and what the optimiser made of it
      were; if not, the state is as it was before.
    priorities: `[B / D]` of the device's unrolls, or None.
  """

  params: base.Params
  metrics: Mapping[str, jax.Array]
  finite: jax.Array
  priorities: jax.Array | None


def initial_state(
  agent: base.Agent, optimizer: optax.GradientTransformation, key: jax.Array
) -> LearnerState:
  """Returns the state before the first update, without a device axis."""
  init_key, key = jax.random.split(key)
  params = agent.init(init_key)
  return LearnerState(
    params=params,
    target_params=params if agent.target_update_period else (),
    opt_state=optimizer.init(params),
    step=jnp.zeros((), jnp.int32),
    key=key,
  )


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
    self._fingerprint = jax.jit(_fingerprint)
    self._sharding = NamedSharding(
      Mesh(np.array(self._devices), (AXIS,)), PartitionSpec(AXIS)
    )
    self._update = jax.pmap(
      _make_update(agent, optimizer, micro_batches, _mean_over(self._devices)),
      axis_name=AXIS,
      devices=self._devices,
      donate_argnums=0,
    )

  @property
  def devices(self) -> tuple[jax.Device, ...]:
    """The training devices of all hosts, in the order of the leading axis."""
    return self._devices

  @property
  def local_devices(self) -> tuple[jax.Device, ...]:
    """Those of this host."""
    return self._local

  def replicate(self, state: LearnerState) -> LearnerState:
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

  def fingerprints(self, state: LearnerState) -> list[int]:
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
    self, state: LearnerState, batch: types.Batch
  ) -> tuple[LearnerState, UpdateOutput]:
    """Runs one update; `state` is donated and must not be used again."""
    return self._update(state, batch)


def first_shard(tree: types.Nest) -> types.Nest:
  """Returns this host's first device's part, leaves `[1, ...]`, not copied."""
  return jax.tree.map(lambda x: x.addressable_data(0), tree)


def local_rows(x: jax.Array) -> np.ndarray:
  """Fetches what this host's devices have of an array `[D, B / D]`, flat."""
  shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
  return np.concatenate([np.asarray(s.data)[0] for s in shards])


def host_state(state: LearnerState) -> LearnerState:
  """Fetches a state from this host's first device, without device axis."""
  return jax.tree.map(lambda x: x[0], jax.device_get(first_shard(state)))


def _make_update(
  agent: base.Agent,
  optimizer: optax.GradientTransformation,
  micro_batches: int,
  mean_over_devices: Callable[[types.Nest], types.Nest],
) -> Callable[[LearnerState, types.Batch], tuple[LearnerState, UpdateOutput]]:
  gradient = jax.value_and_grad(agent.loss, has_aux=True)

  def update(
    state: LearnerState, batch: types.Batch
  ) -> tuple[LearnerState, UpdateOutput]:
    key, loss_key = jax.random.split(state.key)
    loss_key = jax.random.fold_in(loss_key, jax.lax.axis_index(AXIS))
    largest = jax.lax.pmax(jnp.max(batch.weight), AXIS)
    batch = batch._replace(weight=batch.weight / largest)
    results = [
      gradient(
        state.params,
        state.target_params,
        piece,
        jax.random.fold_in(loss_key, i),
      )
      for i, piece in enumerate(_split(batch, micro_batches))
    ]
    priorities = [output.priorities for (_, output), _ in results]
    (loss, metrics), grads = mean_over_devices(
      _mean([((loss, dict(o.metrics)), g) for (loss, o), g in results])
    )
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    scalars = {
      'loss/total': loss,
      'gradient_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
    }
    # An optimiser can divide by zero though loss and gradient are finite.
    finite = jnp.isfinite(jnp.stack(list(scalars.values()))).all()
    params = optax.apply_updates(state.params, updates)
    step = state.step + 1
    target_params = state.target_params
    if agent.target_update_period:
      target_params = optax.periodic_update(
        params, target_params, step, agent.target_update_period
      )
    new_state = LearnerState(params, target_params, opt_state, step, key)
    # A bad update must not reach the checkpoint that the run leaves behind.
    new_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old), new_state, state
    )
    # An explicit copy, as the next update donates the state's buffers: that
    # XLA gives two outputs of one value two buffers is not promised.
    published = jax.tree.map(jnp.copy, new_state.params)
    return new_state, UpdateOutput(
      published,
      dict(metrics) | scalars,
      finite,
      None if priorities[0] is None else jnp.concatenate(priorities),
    )

  return update


def _split(batch: types.Batch, pieces: int) -> list[types.Batch]:
  """Cuts a batch into equal pieces along its unrolls.

  A Python list and not a scan: XLA runs a convolution in a loop on the CPU an
  order of magnitude slower than outside of one.
  """
  if pieces == 1:
    return [batch]
  chex.assert_is_divisible(batch.weight.shape[0], pieces)
  size = batch.weight.shape[0] // pieces

  def cut(i: int) -> types.Batch:
    part = slice(i * size, (i + 1) * size)
    unroll = batch.unroll
    return types.Batch(
      unroll=types.Unroll(
        steps=jax.tree.map(lambda x: x[:, part], unroll.steps),
        initial_core=jax.tree.map(lambda x: x[part], unroll.initial_core),
        env_id=unroll.env_id[part],
      ),
      weight=batch.weight[part],
    )

  return [cut(i) for i in range(pieces)]


def _mean_over(
  devices: Sequence[jax.Device],
) -> Callable[[types.Nest], types.Nest]:
  """Returns what takes the mean of a nest over devices."""
  if len({device.process_index for device in devices}) == 1:
    return functools.partial(jax.lax.pmean, axis_name=AXIS)

  def mean(tree: types.Nest) -> types.Nest:
    # Between processes a message costs more than its bytes: one for all.
    flat, restore = flatten_util.ravel_pytree(tree)
    return restore(jax.lax.pmean(flat, AXIS))

  return mean


def _fingerprint(leaves: list[jax.Array]) -> jax.Array:
  """Returns a hash of arrays' bits, uint32."""
  total = jnp.zeros((), jnp.uint32)
  for leaf in leaves:
    bits = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
    words = jax.lax.bitcast_convert_type(
      bits, jnp.dtype(f'uint{8 * bits.dtype.itemsize}')
    ).astype(jnp.uint32)
    words = words.reshape(-1)
    # Odd, so that no bit is lost; and another for every place.
    place = 2 * jnp.arange(words.size, dtype=jnp.uint32) + 1
    mixed = (words ^ (words >> 15)) * jnp.uint32(0x2C1B3C6D)
    total = total * jnp.uint32(0x297A2D39) + jnp.sum(
      (mixed ^ (mixed >> 12)) * place, dtype=jnp.uint32
    )
  return total


def _mean(trees: list[types.Nest]) -> types.Nest:
  if len(trees) == 1:
    return trees[0]
  return jax.tree.map(lambda *x: sum(x) / len(x), *trees)
