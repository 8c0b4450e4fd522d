"""Runs agents' updates in tests."""

from typing import Any

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base


def run(
  agent: base.Agent,
  state: base.State,
  batch: types.Batch,
  key: jax.Array,
  progress: Any = 0.0,
) -> tuple[base.State, base.UpdateOutput]:
  """Runs an update as on a single training device."""
  update = jax.vmap(
    agent.update, in_axes=(0, 0, None, None), axis_name=base.AXIS
  )
  state, batch = jax.tree.map(lambda x: jnp.asarray(x)[None], (state, batch))
  result = update(state, batch, key, jnp.float32(progress))
  return jax.tree.map(lambda x: x[0], result)
