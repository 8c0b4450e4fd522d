"""Hands finished blocks to the store with the priorities they start with.

`assembling` gives an `Insertion` to each assembler.
"""

import time
from collections.abc import Callable

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.replay import base as replay


class BlockPriorities:
  """Computes what the unrolls of a block are worth, all at once."""

  def __init__(
    self,
    initial_priorities: base.PrioritiesFn,
    unroll_spec: types.Unroll,
    block_width: int,
    device: jax.Device,
  ):
    """Compiles the priorities of a block, so that no run waits for it.

    Args:
      initial_priorities: of the agent.
      unroll_spec: `ArraySpec`s of one unroll.
      block_width: W, unrolls of a block.
      device: where to compute: an inference core.
    """
    sharding = jax.sharding.SingleDeviceSharding(device)

    def shape(spec: types.ArraySpec) -> jax.ShapeDtypeStruct:
      length, *rest = spec.shape
      dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
      return jax.ShapeDtypeStruct(
        (length, block_width, *rest), dtype, sharding=sharding
      )

    steps = jax.tree.map(
      shape,
      types.without_observation(unroll_spec.steps),
      is_leaf=lambda x: isinstance(x, types.ArraySpec),
    )
    self._compute = jax.jit(initial_priorities).lower(steps).compile()

  def __call__(self, block: replay.Block) -> np.ndarray:
    """Returns float32 `[W]`."""
    steps = types.without_observation(block.unroll.steps)
    return np.asarray(self._compute(steps))


class Insertion:
  """Inserts blocks and tells how long the store did not take them."""

  def __init__(
    self,
    writer: replay.TrajectoryWriter,
    priorities: Callable[[replay.Block], np.ndarray] | None = None,
  ):
    """Inserts nothing yet.

    Args:
      writer: takes the blocks.
      priorities: gives those of a block, float `[W]`; None where all unrolls
        are worth the same.
    """
    self._writer = writer
    self._priorities = priorities
    self._begun: float | None = None

  @property
  def waiting(self) -> float:
    """Seconds that the insert under way has taken; any thread may ask."""
    begun = self._begun
    return 0.0 if begun is None else time.perf_counter() - begun

  def __call__(self, block: replay.Block) -> float:
    """Inserts `block`; see `TrajectoryWriter.insert`.

    Returns:
      Seconds that the store took, which do not include the priorities'.
    """
    priorities = self._priorities(block) if self._priorities else None
    self._begun = start = time.perf_counter()
    try:
      self._writer.insert(block, priorities)
    finally:
      self._begun = None
    return time.perf_counter() - start
