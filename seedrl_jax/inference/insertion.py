"""Hands finished blocks to the store, and measures how long that takes."""

import time
from collections.abc import Callable

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.replay import base as replay


class Insertion:
  """Inserts blocks with the agent's initial priorities."""

  def __init__(
    self,
    writer: replay.Table,
    agent: base.Agent,
    unroll_spec: types.Unroll,
    block_width: int,
    device: jax.Device,
  ):
    """Compiles the priorities of blocks of W unrolls for an inference core."""
    self._writer = writer
    self._priorities: Callable[..., jax.Array] | None = None
    if agent.initial_priorities is not None:
      steps = _step_shapes(unroll_spec, block_width, device)
      compute = jax.jit(agent.initial_priorities)
      self._priorities = compute.lower(steps).compile()
    # Seconds of finished inserts, and the start of the current one; one tuple,
    # as other threads read both.
    self._clock: tuple[float, float | None] = (0.0, None)

  def allocate(self) -> replay.Block:
    """Returns a block to fill."""
    return self._writer.allocate()

  def __call__(self, block: replay.Block) -> None:
    """Inserts a block; blocks as `Table.insert` does."""
    priorities = None
    if self._priorities is not None:
      steps = types.without_observation(block.unroll.steps)
      priorities = np.asarray(self._priorities(steps))
    total, start = self._clock[0], time.perf_counter()
    self._clock = total, start
    try:
      self._writer.insert(block, priorities)
    finally:
      self._clock = total + time.perf_counter() - start, None

  @property
  def waited(self) -> float:
    """Seconds that inserts have taken, with the current one; thread-safe."""
    total, start = self._clock
    return total if start is None else total + time.perf_counter() - start


def _step_shapes(
  unroll_spec: types.Unroll, block_width: int, device: jax.Device
) -> types.Steps:
  """Returns shapes `[T + 1, W, ...]` of a block's steps, no observation."""
  sharding = jax.sharding.SingleDeviceSharding(device)

  def shape(spec: types.ArraySpec) -> jax.ShapeDtypeStruct:
    length, *rest = spec.shape
    dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
    return jax.ShapeDtypeStruct(
      (length, block_width, *rest), dtype, sharding=sharding
    )

  return jax.tree.map(
    shape,
    types.without_observation(unroll_spec.steps),
    is_leaf=types.is_spec,
  )
