"""The part of central inference that runs on an inference core.

Holds the table of recurrent states of a stream's environments and the jitted
step that gathers from it, acts and scatters back. `worker.InferenceWorker`
owns one for each stream.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.inference import packing


def batch_buckets(minimum: int, maximum: int) -> tuple[int, ...]:
  """Returns the batch sizes to compile for batches of minimum..maximum.

  Powers of two, and the maximum itself, so that padding at most doubles the
  work of a batch.
  """
  if not 0 < minimum <= maximum:
    raise ValueError(f'No batch sizes between {minimum} and {maximum}.')
  sizes = {maximum}
  size = 1
  while size < maximum:
    if size >= minimum:
      sizes.add(size)
    size *= 2
  return tuple(sorted(sizes))


class DeviceStep:
  """Core-state table on one device, and the act step over its rows."""

  def __init__(
    self,
    agent: base.Agent,
    device: jax.Device,
    num_slots: int,
    key: jax.Array,
  ):
    """Makes the table.

    Args:
      agent: whose `act` to run.
      device: the inference core.
      num_slots: environments of the stream; the table has one row more, where
        the padding of a short batch goes.
      key: PRNG key, uint32 `[2]`; advances with every step.
    """
    self._agent = agent
    self._device = device
    self._num_slots = num_slots
    core = agent.initial_core(num_slots + 1)
    self.has_core = bool(jax.tree.leaves(core))
    self._table, self._key = jax.device_put((core, key), device)
    # The key is not donated: checkpoints read it in mid-run.
    self._act = jax.jit(functools.partial(_act, agent.act), donate_argnums=(1,))
    self._take = jax.jit(
      lambda core, rows: jax.tree.map(lambda x: x[rows], core)
    )

  @property
  def padding_slot(self) -> int:
    """Row of the table that belongs to no environment."""
    return self._num_slots

  @property
  def key(self) -> np.ndarray:
    """The PRNG key that the next step will split, uint32 `[2]`."""
    return np.asarray(self._key)

  def set_key(self, key: np.ndarray) -> None:
    """Continues from a checkpoint's key, uint32 `[2]`."""
    self._key = jax.device_put(key, self._device)

  def output_spec(
    self, params: base.Params, observation: types.Nest
  ) -> types.Nest:
    """Returns the agent output's `ArraySpec`s, without the batch dimension.

    Args:
      params: any acting parameters, or their shapes.
      observation: nest of `ArraySpec`, one environment's.
    """
    b = 1
    step = types.AgentInput(
      observation=jax.tree.map(
        lambda s: jax.ShapeDtypeStruct((b, *s.shape), s.dtype),
        observation,
        is_leaf=lambda s: isinstance(s, types.ArraySpec),
      ),
      reward=jax.ShapeDtypeStruct((b,), jnp.float32),
      previous_action=jax.ShapeDtypeStruct((b,), jnp.int32),
      first=jax.ShapeDtypeStruct((b,), jnp.bool_),
    )
    output, _ = jax.eval_shape(
      self._agent.act,
      params,
      jax.ShapeDtypeStruct((2,), jnp.uint32),
      step,
      jax.eval_shape(lambda: self._agent.initial_core(b)),
      jax.ShapeDtypeStruct((b,), jnp.int32),
    )
    return jax.tree.map(
      lambda x: types.ArraySpec(tuple(x.shape[1:]), np.dtype(x.dtype)), output
    )

  def core_spec(self) -> types.Nest:
    """Returns the core state's `ArraySpec`s, without the batch dimension."""
    return jax.tree.map(
      lambda x: types.ArraySpec(tuple(x.shape[1:]), np.dtype(x.dtype)),
      self._table,
    )

  def __call__(
    self, params: base.Params, observation: types.Nest, header: np.ndarray
  ) -> tuple[jax.Array, base.Core]:
    """Acts for one batch.

    Args:
      params: published parameters, on this device.
      observation: nest of `[B, ...]` host arrays.
      header: int32 `[B, 5]`, see `packing.make_header`; slots must be unique
        but for the padding slot.

    Returns:
      The packed agent output, int32 `[B, K]`, and the core state that the
      rows had before the step, nest of `[B, ...]`; both still on the device.
    """
    self._table, self._key, packed, before = self._act(
      params, self._table, self._key, observation, header
    )
    return packed, before

  def take_core(self, before: base.Core, rows: np.ndarray) -> types.Nest:
    """Fetches some rows of a batch's core state to the host.

    Rows are padded to a power of two, so that no count compiles anew.

    Args:
      before: core state of a batch, nest of `[B, ...]`, from `__call__`.
      rows: int `[n]`, which of them.

    Returns:
      Nest of NumPy arrays `[n, ...]`.
    """
    n = rows.shape[0]
    padded = np.zeros(1 << (n - 1).bit_length(), np.int32)
    padded[:n] = rows
    taken = jax.device_get(self._take(before, padded))
    return jax.tree.map(lambda x: x[:n], taken)

  def compile(
    self,
    params: base.Params,
    observation: types.Nest,
    sizes: tuple[int, ...],
  ) -> None:
    """Runs the step once for each batch size, on padding rows only.

    Neither an environment's core state nor the PRNG key changes.

    Args:
      params: published parameters on this device.
      observation: nest of `ArraySpec`, one environment's.
      sizes: batch sizes, see `batch_buckets`.
    """
    key = self.key
    for size in sizes:
      blank = jax.tree.map(
        lambda s, size=size: np.zeros((size, *s.shape), s.dtype),
        observation,
        is_leaf=lambda s: isinstance(s, types.ArraySpec),
      )
      header = np.zeros((size, packing.HEADER_WIDTH), np.int32)
      header[:, 0] = self.padding_slot
      packed, before = self(params, blank, header)
      packed.block_until_ready()
      count = 1
      while self.has_core:
        self.take_core(before, np.zeros(min(count, size), np.int32))
        if count >= size:
          break
        count *= 2
    self.set_key(key)


def _act(
  act: base.ActFn,
  params: base.Params,
  table: base.Core,
  key: jax.Array,
  observation: types.Nest,
  header: jax.Array,
) -> tuple[base.Core, jax.Array, jax.Array, base.Core]:
  """Gathers core states, acts, scatters; jitted by `DeviceStep`."""
  columns = packing.read_header(header)
  before = jax.tree.map(
    lambda x: x.at[columns.slot].get(mode='promise_in_bounds'), table
  )
  key, act_key = jax.random.split(key)
  step = types.AgentInput(
    observation=observation,
    reward=columns.reward,
    previous_action=columns.previous_action,
    first=columns.first,
  )
  output, after = act(params, act_key, step, before, columns.env_id)
  table = jax.tree.map(
    lambda x, rows: x.at[columns.slot].set(rows, mode='promise_in_bounds'),
    table,
    after,
  )
  return table, key, packing.pack(output), before
