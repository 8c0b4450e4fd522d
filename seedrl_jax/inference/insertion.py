"""Hands finished blocks to the store with the priorities they start with.

`builder` gives it to the assembler of an agent that has
`initial_priorities`; without, the writer itself does.
"""

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.replay import base as replay


class PrioritizedInsertion:
  """Computes a block's priorities, all at once, and inserts it."""

  def __init__(
    self,
    writer: replay.TrajectoryWriter,
    initial_priorities: base.PrioritiesFn,
    unroll_spec: types.Unroll,
    block_width: int,
    device: jax.Device,
  ):
    """Compiles the priorities of a block, so that no run waits for it.

    Args:
      writer: takes the blocks.
      initial_priorities: of the agent.
      unroll_spec: `ArraySpec`s of one unroll.
      block_width: W, unrolls of a block.
      device: where to compute: an inference core.
    """
    self._writer = writer
    sharding = jax.sharding.SingleDeviceSharding(device)

    def shape(spec: types.ArraySpec) -> jax.ShapeDtypeStruct:
      length, *rest = spec.shape
      dtype = jax.dtypes.canonicalize_dtype(spec.dtype)
      return jax.ShapeDtypeStruct(
        (length, block_width, *rest), dtype, sharding=sharding
      )

    steps = jax.tree.map(
      shape,
      _without_observation(unroll_spec.steps),
      is_leaf=lambda x: isinstance(x, types.ArraySpec),
    )
    self._compute = jax.jit(initial_priorities).lower(steps).compile()

  def __call__(self, block: replay.Block) -> None:
    """Inserts `block`; see `TrajectoryWriter.insert`."""
    priorities = self._compute(_without_observation(block.unroll.steps))
    self._writer.insert(block, np.asarray(priorities))


def _without_observation(steps: types.Steps) -> types.Steps:
  return steps._replace(observation=())
