"""Runs the update of a batch on all training devices.

Devices may be of several hosts: each places and reads only what is on its own.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.learner import fingerprints

# For a single call on the CPU: compiles in a third of the time.
_RUN_ONCE = {'xla_backend_optimization_level': 1}


class LearnerState(NamedTuple):
  """What training changes; on the devices every leaf leads with `[D]`."""

  agent: base.State
  step: jax.Array  # int32, optimiser steps so far
  key: jax.Array  # uint32 [2]


def initial_state(agent: base.Agent, key: jax.Array) -> LearnerState:
  """Returns the state before the first update, without a device axis."""

  # One program: else each of many operations would be compiled alone.
  @functools.partial(jax.jit, compiler_options=_RUN_ONCE)
  def make(key: jax.Array) -> LearnerState:
    init_key, key = jax.random.split(key)
    return LearnerState(agent.init(init_key), jnp.zeros((), jnp.int32), key)

  # On the host: orthogonal weights take minutes to compile for a TPU.
  with jax.default_device(jax.local_devices(backend='cpu')[0]):
    return make(key)


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['values'],
  meta_fields=['names'],
)
@dataclasses.dataclass(frozen=True)
class Metrics:
  """Metrics as one array, because every result of a program takes time."""

  values: jax.Array  # float32 [M], the same on all devices
  names: tuple[str, ...]  # of the values

  @classmethod
  def pack(cls, metrics: Mapping[str, jax.Array]) -> 'Metrics':
    """Packs scalars, sorted by name; raises ValueError for other shapes."""
    names = tuple(sorted(metrics))
    for name in names:
      if shape := jnp.shape(metrics[name]):
        raise ValueError(
          f'The metric {name} has the shape {shape}; return a scalar.'
        )
    return cls(jnp.array([metrics[x] for x in names], jnp.float32), names)

  def fetch(self) -> dict[str, float]:
    """Returns the metrics on the host."""
    values = jax.device_get(self.values.addressable_data(0))
    return dict(zip(self.names, values.tolist(), strict=True))


class Output(NamedTuple):
  """A `base.UpdateOutput`, packed; its priorities lead with `[D]`."""

  metrics: Metrics
  finite: jax.Array
  priorities: jax.Array | None


class UpdateResult(NamedTuple):
  """What an update returns."""

  state: LearnerState  # the next one, or the same if the update was not finite
  output: Output
  params: base.Params  # acting parameters, in buffers that no update donates
  num_steps: int  # optimiser steps since the parameters of the last update


class GradientStep:
  """How a batch changes an agent's state, and where that state is.

  A step may keep the state, or a part of it, outside of the training devices.
  """

  def device_state(self, state: LearnerState) -> LearnerState:
    """Returns what the training devices keep of a state."""
    return state

  def whole_state(self, state: LearnerState) -> LearnerState:
    """Returns a whole state, on the host, from what a device keeps of it."""
    return state

  def __call__(
    self, state: LearnerState, batch: types.Batch, progress: float
  ) -> UpdateResult:
    """See `Updater.__call__`."""
    raise NotImplementedError

  def rehearse(self, state: LearnerState, batch: types.Batch) -> base.Params:
    """Runs all programs of an update without an effect; may donate `state`.

    Returns acting parameters.
    """
    return self(state, batch, 0.0).params

  def metrics(self) -> dict[str, float]:
    """Returns metrics of the updates, in addition to the agent's."""
    return {}


class PmapStep(GradientStep):
  """Runs the agent's `update` on all training devices."""

  def __init__(self, agent: base.Agent, devices: Sequence[jax.Device]):
    self._num_steps = agent.updates_per_batch
    self._update: Any = on_all(agent, devices)

  def __call__(
    self, state: LearnerState, batch: types.Batch, progress: float
  ) -> UpdateResult:
    steps, now = self._update, np.float32(progress)
    if isinstance(steps, base.UpdateInPieces):
      total, pieces = steps.cut(state, batch)
      results = []
      for piece in pieces:
        total, result = steps.accumulate(total, state, piece)
        results.append(result)
      new: Any = steps.finish(state, total, results, now)
    else:
      new = steps(state, batch, now)
    state, output, params = new
    return UpdateResult(state, output, params, self._num_steps)


class Updater:
  """Runs an agent's updates on a set of training devices.

  Attributes:
    devices: those of all hosts, in the order of the leading axis.
    local_devices: those of this host.
  """

  def __init__(
    self,
    agent: base.Agent,
    devices: Sequence[jax.Device],
    step: GradientStep | None = None,
  ):
    """`devices` are those of all hosts, in the same order on each.

    The default `step` is a `PmapStep`.
    """
    self.agent = agent
    self.step: GradientStep = step or PmapStep(agent, devices)
    self.devices = tuple(devices)
    host = jax.process_index()
    self.local_devices = tuple(d for d in devices if d.process_index == host)
    # Of each row on this host, by its index among all.
    self._rows = {
      self.devices.index(d): i for i, d in enumerate(self.local_devices)
    }
    self._fingerprint = jax.jit(fingerprints.fingerprint)
    self._sharding = NamedSharding(
      Mesh(np.array(self.devices), (base.AXIS,)), PartitionSpec(base.AXIS)
    )

  def replicate(self, state: LearnerState) -> LearnerState:
    """Puts a state without device axis on every training device."""
    count = len(self.local_devices)
    return jax.tree.map(
      lambda x: self._place([np.asarray(x)] * count),
      self.step.device_state(state),
    )

  def _place(self, rows: Sequence[np.ndarray]) -> jax.Array:
    """Makes a global array from one row for each of this host's devices."""

    def row(index: Any) -> np.ndarray:
      return rows[self._rows[index[0].start or 0]][None]

    # Several times as fast as one call for each device.
    shape = (len(self.devices), *rows[0].shape)
    return jax.make_array_from_callback(shape, self._sharding, row)

  def connect(self) -> None:
    """Connects the devices of all hosts; all hosts call it at once.

    CPUs have 30 s for this; hosts' first compilations may differ by more.
    """
    meet = jax.pmap(
      lambda x: jax.lax.psum(x, base.AXIS),
      axis_name=base.AXIS,
      devices=self.devices,
    )
    rows = [np.ones(1)] * len(self.local_devices)
    jax.block_until_ready(meet(self._place(rows)))

  def shard(self, pieces: Sequence[types.Batch]) -> types.Batch:
    """Puts one piece of a batch on each of this host's training devices.

    Leaves of the result lead with `[D]`, one row on each device. A single CPU
    uses the host's arrays, not copied. Pieces that are on devices have the
    leading axis already, of size 1.
    """
    if isinstance(pieces[0].weight, jax.Array):
      return self._join(pieces)
    if len(self.devices) == 1 and self.devices[0].platform == 'cpu':
      (piece,) = pieces
      return jax.tree.map(lambda x: x[None], piece)
    return jax.tree.map(lambda *rows: self._place(rows), *pieces)

  def _join(self, pieces: Sequence[types.Batch]) -> types.Batch:
    pairs = zip(pieces, self.local_devices, strict=True)
    rows = [jax.device_put(piece, device) for piece, device in pairs]

    def join(*row: jax.Array) -> jax.Array:
      shape = (len(self.devices), *row[0].shape[1:])
      return jax.make_array_from_single_device_arrays(
        shape, self._sharding, row
      )

    return jax.tree.map(join, *rows)

  def fingerprints(self, state: LearnerState) -> list[tuple[float, ...]]:
    """Returns the fingerprint of the state on each of this host's devices."""
    leaves = jax.tree.leaves(state)
    prints = []
    for i in range(len(self.local_devices)):
      rows = [x.addressable_data(i) for x in leaves]
      exact, sums = jax.device_get(self._fingerprint(rows))
      prints.append((int(exact), *sums.ravel().tolist()))
    return prints

  def __call__(
    self, state: LearnerState, batch: types.Batch, progress: float
  ) -> UpdateResult:
    """Runs one update.

    Args:
      state: is donated; do not use it again.
      batch: as returned by `shard`.
      progress: of the run, in [0, 1]; the same on all hosts.
    """
    return self.step(state, batch, progress)

  def compile(self, state: LearnerState, batch: types.Batch) -> base.Params:
    """Runs the update on a copy of the state; returns acting parameters."""
    copied = self.replicate(self.host_state(state))
    return jax.block_until_ready(self.step.rehearse(copied, batch))

  def host_state(self, state: LearnerState) -> LearnerState:
    """Fetches the whole state to the host, without device axis."""
    return self.step.whole_state(host_state(state))


def on_all(
  agent: base.Agent, devices: Sequence[jax.Device]
) -> Callable[..., Any] | base.UpdateInPieces:
  pmap = functools.partial(jax.pmap, axis_name=base.AXIS, devices=devices)
  # Outputs that are equal on all devices have no device axis.
  out_axes = (0, Output._make((None, None, 0)), None)

  if not isinstance(agent.update, base.UpdateInPieces):
    return pmap(
      functools.partial(update, agent),
      in_axes=(0, 0, None),
      out_axes=out_axes,
      donate_argnums=0,
    )
  steps = agent.update

  def cut(state: Any, batch: types.Batch) -> Any:
    return steps.cut(state.agent, *_prepare(state, batch))

  def accumulate(total: Any, state: Any, piece: Any) -> Any:
    return steps.accumulate(total, state.agent, piece)

  def finish(state: Any, total: Any, results: Any, progress: Any) -> Any:
    new = steps.finish(state.agent, total, results, progress)
    return _end(agent, state, *new)

  return base.UpdateInPieces(
    pmap(cut),
    pmap(accumulate, donate_argnums=0),
    pmap(finish, in_axes=(0, 0, 0, None), out_axes=out_axes, donate_argnums=0),
  )


def update(
  agent: base.Agent, state: LearnerState, batch: types.Batch, progress: Any
) -> tuple[LearnerState, Output, base.Params]:
  """Returns the next state, the output and acting parameters.

  Runs on each training device, under the axis `base.AXIS`, unless the agent's
  update is in pieces.
  """
  assert not isinstance(agent.update, base.UpdateInPieces)
  batch, key = _prepare(state, batch)
  return _end(agent, state, *agent.update(state.agent, batch, key, progress))


def _prepare(
  state: LearnerState, batch: types.Batch
) -> tuple[types.Batch, jax.Array]:
  """Returns a device's share with normalised weights, and the device's key."""
  _, key = jax.random.split(state.key)
  largest = jax.lax.pmax(jnp.max(batch.weight), base.AXIS)
  return (
    batch._replace(weight=batch.weight / largest),
    jax.random.fold_in(key, jax.lax.axis_index(base.AXIS)),
  )


def _end(
  agent: base.Agent,
  state: LearnerState,
  agent_state: base.State,
  output: base.UpdateOutput,
) -> tuple[LearnerState, Output, base.Params]:
  """Returns the next state, if finite; the output; and acting parameters."""
  key, _ = jax.random.split(state.key)
  new_state = LearnerState(
    agent_state, state.step + agent.updates_per_batch, key
  )
  # Keeps a bad update out of the final checkpoint.
  new_state = jax.tree.map(
    lambda new, old: jnp.where(output.finite, new, old), new_state, state
  )
  # The next update donates the state's buffers, and XLA may let equal outputs
  # share one.
  params = jax.tree.map(jnp.copy, agent.acting_params(new_state.agent))
  packed = Output(
    Metrics.pack(output.metrics), output.finite, output.priorities
  )
  return new_state, packed, params


def first_shard(tree: types.Nest) -> types.Nest:
  """Returns the part on this host's first device, not copied.

  NumPy arrays have no shards and are returned unchanged (`Updater.shard`).
  """
  return jax.tree.map(
    lambda x: x if isinstance(x, np.ndarray) else x.addressable_data(0), tree
  )


def local_rows(x: jax.Array) -> np.ndarray:
  """Fetches this host's rows of an array `[D, B / D]`, flat."""
  shards = sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)
  return np.concatenate([np.asarray(s.data)[0] for s in shards])


def host_state(state: LearnerState) -> LearnerState:
  """Fetches a state from this host's first device, without device axis."""
  return jax.tree.map(lambda x: x[0], jax.device_get(first_shard(state)))
