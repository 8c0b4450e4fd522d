"""Makes what assembles a stream's unrolls and hands them to the store.

Called by `builder` for the learner's own inference, and by `local_inference`
for an actor that acts itself: both make the same unrolls.
"""

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import insertion
from seedrl_jax.replay import base as replay


def make_insertion(
  agent: agents.Agent,
  writer: replay.TrajectoryWriter,
  unroll_spec: types.Unroll,
  block_width: int,
  device: jax.Device,
) -> insertion.Insertion:
  """Makes what puts blocks into the store, with the agent's priorities.

  Args:
    agent: whose unrolls they are.
    writer: of the run's table.
    unroll_spec: `ArraySpec`s of one unroll.
    block_width: unrolls of a block.
    device: where priorities are computed.
  """
  priorities = None
  if agent.initial_priorities is not None:
    priorities = insertion.BlockPriorities(
      agent.initial_priorities, unroll_spec, block_width, device
    )
  return insertion.Insertion(writer, priorities)


def make_assembler(
  agent: agents.Agent,
  writer: replay.TrajectoryWriter,
  insert: insertion.Insertion,
  global_env_id: np.ndarray,
  unroll_length: int,
  block_width: int,
) -> assembler_lib.UnrollAssembler:
  """Makes the assembler of a stream.

  Args:
    agent: whose unrolls they are.
    writer: of the run's table.
    insert: from `make_insertion`.
    global_env_id: int `[N]`, of the stream's training environments.
    unroll_length: the run's `unroll_length`.
    block_width: unrolls of a block.
  """
  return assembler_lib.UnrollAssembler(
    allocate=writer.allocate,
    insert=insert,
    global_env_id=global_env_id,
    num_transitions=agent.num_transitions(unroll_length),
    overlap=agent.overlap,
    block_width=block_width,
  )
