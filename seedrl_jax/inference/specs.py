"""The arrays of inference: their specs, and how small ones are packed.

A transfer to or from an accelerator takes tens of microseconds at any size. So
the small values of a step are packed into one int32 array each way.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base


class Header(NamedTuple):
  """What the act step needs beside observations; see `types.AgentInput`."""

  slot: types.Array  # int32 [B], rows of the core-state table
  env_id: types.Array  # int32 [B], run-wide ids
  first: types.Array  # int32 [B]
  reward: types.Array
  previous_action: types.Array


def header_spec(action: types.ActionSpec) -> Header:
  """Returns the `ArraySpec`s of a header."""
  int32 = types.ArraySpec((), np.dtype(np.int32))
  return Header(
    slot=int32,
    env_id=int32,
    first=int32,
    reward=types.ArraySpec((), np.dtype(np.float32)),
    previous_action=types.ArraySpec(action.shape, action.dtype),
  )


def output_spec(
  agent: base.Agent, spec: types.StreamSpec, params: base.Params
) -> types.Nest:
  """Returns the agent output's `ArraySpec`s; `params` may be shapes.

  Raises:
    ValueError: if the actions are not what the environments take.
  """

  header = zeros(header_spec(spec.action), 1)
  step = types.AgentInput(
    observation=zeros(spec.observation, 1),
    reward=header.reward,
    previous_action=header.previous_action,
    first=np.zeros(1, bool),
  )
  core, key = agent.initial_core(1), jax.random.PRNGKey(0)
  output, _ = jax.eval_shape(agent.act, params, key, step, core, header.env_id)
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
  return _row_specs(agent.initial_core(1))


def _row_specs(batch: types.Nest) -> types.Nest:
  """Returns the `ArraySpec`s of a row of arrays or shapes `[B, ...]`."""
  return jax.tree.map(
    lambda x: types.ArraySpec(tuple(x.shape[1:]), np.dtype(x.dtype)), batch
  )


def unroll_spec(
  spec: types.StreamSpec,
  num_transitions: int,
  agent_output: types.Nest,
  core: types.Nest,
) -> types.Unroll:
  """Returns `ArraySpec`s of a stored unroll of T transitions."""

  def scalar(dtype: Any) -> types.ArraySpec:
    return types.ArraySpec((), np.dtype(dtype))

  step = types.Steps(
    observation=spec.observation,
    reward=scalar(np.float32),
    discount=scalar(np.float32),
    step_type=scalar(np.uint8),
    previous_action=types.ArraySpec(spec.action.shape, spec.action.dtype),
    agent_output=agent_output,
    parameter_version=scalar(np.int32),
  )
  steps = jax.tree.map(
    lambda s: types.ArraySpec((num_transitions + 1, *s.shape), s.dtype),
    step,
    is_leaf=types.is_spec,
  )
  return types.Unroll(steps, core, env_id=scalar(np.int32))


def zeros(specs: types.Nest, *leading: int) -> types.Nest:
  """Returns arrays `[*leading, ...]` like a nest of `ArraySpec`s."""
  return jax.tree.map(
    lambda s: np.zeros((*leading, *s.shape), s.dtype),
    specs,
    is_leaf=types.is_spec,
  )


def blank_batch(spec: types.Unroll, width: int) -> types.Batch:
  """Returns a batch of zeros for one training device, to compile with."""

  unroll = zeros(spec, width)
  steps = jax.tree.map(lambda x: x.swapaxes(0, 1).copy(), unroll.steps)
  return types.Batch(
    unroll._replace(steps=steps), weight=np.ones(width, np.float32)
  )


class Packing:
  """Packs a nest of four-byte leaves `[B, ...]` into one int32 `[B, K]`."""

  def __init__(self, spec: types.Nest):
    """`spec` has the `ArraySpec`s; raises TypeError if one does not fit."""
    self._specs, self._treedef = jax.tree.flatten(spec, is_leaf=types.is_spec)
    for leaf in self._specs:
      if leaf.dtype.itemsize != 4:
        raise TypeError(
          f'An agent output leaf is {leaf.dtype}{list(leaf.shape)}; every leaf '
          'must be of a four-byte type (int32, uint32 or float32).'
        )
    self._record = np.dtype([
      (str(i), s.dtype, s.shape) for i, s in enumerate(self._specs)
    ])
    self.width = self._record.itemsize // 4
    # The nest with each leaf's place in `views`.
    self.numbers = jax.tree.unflatten(self._treedef, range(len(self._specs)))

  def views(self, packed: np.ndarray) -> list[np.ndarray]:
    """Returns views `[n, ...]` of the leaves of int32 `[n, K]` on the host."""
    records = packed.view(self._record)[:, 0]
    return [records[name] for name in self._record.names or ()]

  def pack(self, nest: types.Nest) -> jax.Array:
    """Packs a nest inside a jitted function."""
    return jnp.concatenate(
      [x.view(jnp.int32).reshape(len(x), -1) for x in jax.tree.leaves(nest)],
      axis=1,
    )

  def unpack(self, packed: jax.Array) -> types.Nest:
    """Undoes `pack` inside a jitted function."""
    leaves, start = [], 0
    for spec in self._specs:
      stop = start + math.prod(spec.shape)
      leaf = packed[:, start:stop].view(spec.dtype)
      leaves.append(leaf.reshape(len(packed), *spec.shape))
      start = stop
    return jax.tree.unflatten(self._treedef, leaves)
