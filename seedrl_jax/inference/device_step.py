"""The part of central inference that runs on an inference core."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import packing


def batch_buckets(minimum: int, maximum: int) -> tuple[int, ...]:
  """Returns the batch sizes to compile: powers of two, and the maximum.

  Padding to them at most doubles a batch's work.
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


def output_spec(
  agent: base.Agent,
  spec: types.EnvSpec | envs.StreamSpec,
  params: base.Params,
) -> types.Nest:
  """Returns the agent output's `ArraySpec`s; `params` may be shapes.

  Raises:
    ValueError: if the actions are not what the environments take.
  """
  b = 1
  step = types.AgentInput(
    observation=jax.tree.map(
      lambda s: jax.ShapeDtypeStruct((b, *s.shape), s.dtype),
      spec.observation,
      is_leaf=types.is_spec,
    ),
    reward=jax.ShapeDtypeStruct((b,), jnp.float32),
    previous_action=jax.ShapeDtypeStruct(
      (b, *spec.action.shape), spec.action.dtype
    ),
    first=jax.ShapeDtypeStruct((b,), jnp.bool_),
  )
  output, _ = jax.eval_shape(
    agent.act,
    params,
    jax.ShapeDtypeStruct((2,), jnp.uint32),
    step,
    jax.eval_shape(lambda: agent.initial_core(b)),
    jax.ShapeDtypeStruct((b,), jnp.int32),
  )
  specs = _row_specs(output)
  ours, theirs = specs.action, types.ArraySpec(*spec.action[:2])
  if ours != theirs:
    raise ValueError(
      f'The agent acts with {ours.dtype}{list(ours.shape)}, but the '
      f'environments take {theirs.dtype}{list(theirs.shape)}.'
    )
  return specs


def core_spec(agent: base.Agent) -> types.Nest:
  """Returns the core state's `ArraySpec`s."""
  return _row_specs(jax.eval_shape(lambda: agent.initial_core(1)))


def _row_specs(batch: types.Nest) -> types.Nest:
  """Returns the `ArraySpec`s of a row of arrays or shapes `[B, ...]`."""
  return jax.tree.map(
    lambda x: types.ArraySpec(tuple(x.shape[1:]), np.dtype(x.dtype)), batch
  )


class DeviceStep:
  """The core states of `num_slots` environments, and the jitted act step.

  The table has one row more, for the padding of short batches.
  """

  def __init__(
    self,
    agent: base.Agent,
    spec: types.EnvSpec | envs.StreamSpec,
    device: jax.Device,
    num_slots: int,
    key: jax.Array,
  ):
    self._agent = agent
    self._spec = spec
    self._device = device
    self._num_slots = num_slots
    core = agent.initial_core(num_slots + 1)
    self.has_core = bool(jax.tree.leaves(core))
    self._table, self._key = jax.device_put((core, key), device)
    # The key is not donated: checkpoints read it from other threads.
    self._act = jax.jit(
      functools.partial(_act, agent.act, spec.action), donate_argnums=(1,)
    )
    self._take = jax.jit(
      lambda core, rows: jax.tree.map(lambda x: x[rows], core)
    )

  def make_header(self, size: int) -> np.ndarray:
    """Returns a header `[size, H]` of padding rows."""
    return packing.make_header(size, self._num_slots, self._spec.action)

  @property
  def key(self) -> np.ndarray:
    """The PRNG key that the next step will split, uint32 `[2]`."""
    return np.asarray(self._key)

  def set_key(self, key: np.ndarray) -> None:
    """Sets the PRNG key, uint32 `[2]`."""
    self._key = jax.device_put(key, self._device)

  def __call__(
    self, params: base.Params, observation: types.Nest, header: np.ndarray
  ) -> tuple[jax.Array, base.Core]:
    """Acts for one batch.

    Args:
      params: acting parameters on this device.
      observation: nest of `[B, ...]` host arrays.
      header: int32 `[B, H]`; slots must be unique but for the padding slot.

    Returns:
      On the device: packed output, int32 `[B, K]`, and the rows' core state
        before the step, nest of `[B, ...]`.
    """
    self._table, self._key, packed, before = self._act(
      params, self._table, self._key, observation, header
    )
    return packed, before

  def take_core(self, before: base.Core, rows: np.ndarray) -> types.Nest:
    """Returns rows `[n]` of a batch's core state as NumPy `[n, ...]`.

    Pads them to a power of two, to compile few sizes.
    """
    n = rows.shape[0]
    padded = np.zeros(1 << (n - 1).bit_length(), np.int32)
    padded[:n] = rows
    taken = jax.device_get(self._take(before, padded))
    return jax.tree.map(lambda x: x[:n], taken)

  def compile(self, params: base.Params, sizes: tuple[int, ...]) -> None:
    """Compiles the step for each batch size, on padding rows.

    Changes neither core states nor the PRNG key.
    """
    key = self.key
    for size in sizes:
      blank = jax.tree.map(
        lambda s, size=size: np.zeros((size, *s.shape), s.dtype),
        self._spec.observation,
        is_leaf=types.is_spec,
      )
      header = self.make_header(size)
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
  action: types.ActionSpec,
  params: base.Params,
  table: base.Core,
  key: jax.Array,
  observation: types.Nest,
  header: jax.Array,
) -> tuple[base.Core, jax.Array, jax.Array, base.Core]:
  """Gathers core states, acts and scatters; jitted by `DeviceStep`."""
  columns = packing.read_header(header, action)
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
