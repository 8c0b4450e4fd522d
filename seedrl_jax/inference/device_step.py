"""The part of central inference that runs on an inference core."""

from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.inference import specs

# XLA's default on CPU runs independent operations, such as a policy's and a
# baseline's layers, on other threads. These wait for their turn as long as many
# calls take, while environments keep all cores busy.
_SERIAL = {'xla_cpu_scheduler_type': 'CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED'}


def batch_buckets(minimum: int, maximum: int) -> tuple[int, ...]:
  """Returns the batch sizes to compile: powers of two, and the maximum.

  Padding to them at most doubles a batch's work. The minimum is at least 1.
  """
  powers = (1 << i for i in range(maximum.bit_length()))
  return (*(x for x in powers if minimum <= x < maximum), maximum)


class Programs(NamedTuple):
  """The jitted functions of inference on a device."""

  # (params, table, key, observation, header) -> (table, key, packed output
  # [B, K], core states before).
  act: Any
  restore: Any  # (table, header, core states before) -> table
  take: Any  # (core states, rows) -> leaves of these rows


def make_programs(
  agent: base.Agent, header: specs.Packing, output: specs.Packing, platform: str
) -> Programs:
  """Returns the functions for devices of a `platform`; tables are donated."""

  def act(
    params: base.Params,
    table: base.Core,
    key: jax.Array,
    observation: types.Nest,
    packed_header: jax.Array,
  ) -> tuple[base.Core, jax.Array, jax.Array, base.Core]:
    inputs = header.unpack(packed_header)
    before = jax.tree.map(
      lambda x: x.at[inputs.slot].get(mode='promise_in_bounds'), table
    )
    key, act_key = jax.random.split(key)
    step = types.AgentInput(
      observation=observation,
      reward=inputs.reward,
      previous_action=inputs.previous_action,
      first=inputs.first != 0,
    )
    chosen, after = agent.act(params, act_key, step, before, inputs.env_id)
    return _put(table, inputs.slot, after), key, output.pack(chosen), before

  def restore(
    table: base.Core, packed_header: jax.Array, before: base.Core
  ) -> base.Core:
    return _put(table, header.unpack(packed_header).slot, before)

  return Programs(
    act=jax.jit(
      act,
      donate_argnums=(1,),
      compiler_options=_SERIAL if platform == 'cpu' else None,
    ),
    restore=jax.jit(restore, donate_argnums=(0,)),
    take=jax.jit(lambda core, rows: [x[rows] for x in jax.tree.leaves(core)]),
  )


class DeviceStep:
  """The core states of `num_slots` environments, and the jitted act step.

  The table has one row more, for the padding of short batches.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.StreamSpec,
    output: types.Nest,
    device: jax.Device,
    num_slots: int,
    key: jax.Array,
  ):
    """Starts with initial core states; `output` is of `specs.output_spec`."""
    # How a batch's header and the agent's output are packed.
    self.header = specs.Packing(specs.header_spec(spec.action))
    self.output = specs.Packing(output)
    self._spec = spec
    self._num_slots = num_slots
    core = agent.initial_core(num_slots + 1)
    self._has_core = bool(jax.tree.leaves(core))
    self._table, self._key = jax.device_put((core, key), device)
    # The key is not donated: checkpoints read it from other threads.
    self._programs = make_programs(
      agent, self.header, self.output, device.platform
    )

  def make_header(self, size: int) -> np.ndarray:
    """Returns a header, int32 `[size, H]`, of padding rows."""
    header = np.zeros((size, self.header.width), np.int32)
    specs.Header(*self.header.views(header)).slot[:] = self._num_slots
    return header

  @property
  def key(self) -> np.ndarray:
    """The PRNG key that the next step will split, uint32 `[2]`."""
    return np.asarray(self._key)

  def __call__(
    self, params: base.Params, observation: types.Nest, header: np.ndarray
  ) -> tuple[jax.Array, base.Core]:
    """Acts for one batch.

    Args:
      params: acting parameters on this device.
      observation: nest of `[B, ...]` host arrays.
      header: int32 `[B, H]`; slots must be unique, except for the padding slot.

    Returns:
      On the device: packed output, int32 `[B, K]`, and the rows' core state
        before the step, nest of `[B, ...]`.
    """
    self._table, self._key, packed, before = self._programs.act(
      params, self._table, self._key, observation, header
    )
    return packed, before

  def restore(self, header: np.ndarray, before: base.Core) -> None:
    """Undoes a step's changes of core states; `before` is what it returned."""
    if self._has_core:
      self._table = self._programs.restore(self._table, header, before)

  def take_core(self, before: base.Core, rows: np.ndarray) -> list[np.ndarray]:
    """Returns leaves `[n, ...]` of rows `[n]` of a batch's core state.

    Pads them to a power of two, to compile few sizes.
    """
    if not self._has_core:
      return []
    n = rows.shape[0]
    padded = np.zeros(1 << (n - 1).bit_length(), np.int32)
    padded[:n] = rows
    return [x[:n] for x in jax.device_get(self._programs.take(before, padded))]

  def compile(
    self, params: base.Params, sizes: tuple[int, ...], restores: bool = False
  ) -> None:
    """Compiles the step (and `restore`) for each batch size, on padding rows.

    Changes neither core states nor the PRNG key.
    """
    key = self._key
    for size in sizes:
      blank = specs.zeros(self._spec.observation, size)
      packed, before = self(params, blank, self.make_header(size))
      packed.block_until_ready()
      if restores:
        self.restore(self.make_header(size), before)
      for count in batch_buckets(1, size):
        self.take_core(before, np.zeros(count, np.int32))
    self._key = key


def _put(table: base.Core, slot: jax.Array, rows: base.Core) -> base.Core:
  return jax.tree.map(
    lambda x, y: x.at[slot].set(y, mode='promise_in_bounds'), table, rows
  )
