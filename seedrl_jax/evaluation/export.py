"""Writes a policy as a StableHLO function that needs only JAX to run.

`policy.stablehlo` is a serialized `jax.export.Exported`; `policy.json`
describes its inputs and outputs.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import export as jax_export

from seedrl_jax import types
from seedrl_jax.evaluation import playing, policy
from seedrl_jax.runtime import file_io

PLATFORMS = ('cpu', 'cuda', 'tpu')


def export(
  player: playing.Player,
  spec: types.EnvSpec,
  folder: pathlib.Path,
  batch_size: int = 1,
  sample: bool = False,
) -> None:
  """Writes the policy's two files to `folder`, which is made.

  The function maps (inputs, state) to (actions `[B, ...]`, next state).
  `inputs` has the keys 'observation', 'reward', 'first' and 'key', and 'state'
  is a list of arrays, all zeros at first.

  Raises:
    NotWritten: if a file cannot be written.
    OSError: if the folder cannot be made.
  """
  state = jax.eval_shape(
    lambda: policy.initial_state(player.agent, spec, batch_size)
  )
  leaves, structure = jax.tree.flatten(state)
  inputs = _inputs(spec, batch_size)
  step = policy.make_step(player.agent, spec, sample)

  @jax.jit
  def call(inputs: dict[str, Any], state: list[Any]) -> tuple[Any, list[Any]]:
    before = jax.tree.unflatten(structure, state)
    action, after = step(player.params, before, **inputs)
    return action, jax.tree.leaves(after)

  exported = jax_export.export(call, platforms=PLATFORMS)(inputs, leaves)
  folder.mkdir(parents=True, exist_ok=True)
  file_io.write_whole(folder / 'policy.stablehlo', bytes(exported.serialize()))
  description = {
    'environment': spec.env_id,
    'checkpoint': player.version,
    'platforms': PLATFORMS,
    'inputs': jax.tree.map(_text, inputs),
    'state': [_text(x) for x in leaves],
    'action': _text(exported.out_avals[0]),
  }
  file_io.write_json(folder / 'policy.json', description)


def _inputs(spec: types.EnvSpec, batch_size: int) -> dict[str, Any]:
  """Returns the shapes of the function's inputs except the state."""

  def rows(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch_size, *shape), dtype)

  return {
    'observation': jax.tree.map(
      lambda s: rows(s.dtype, *s.shape),
      spec.observation,
      is_leaf=types.is_spec,
    ),
    'reward': rows(jnp.float32),
    'first': rows(jnp.bool_),
    'key': jax.ShapeDtypeStruct((2,), jnp.uint32),
  }


def _text(x: Any) -> dict[str, Any]:
  return {'shape': x.shape, 'dtype': x.dtype.name}
