"""Metrics that show whether a network can still learn.

Modules `sow` units and values in the collection `health`. Only a measurement
makes it mutable; elsewhere Flax discards what they sow.
"""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seedrl_jax import types

# The Flax collection of what modules sow.
COLLECTION = 'health'
# `(params, inputs [T, B, ...], core) -> metrics`.
MeasureFn = Callable[[Any, types.AgentInput, Any], dict[str, jax.Array]]


def sow_units(module: nn.Module, units: jax.Array) -> None:
  """Records the outputs `[N, F]` of a torso's last ReLU layer."""
  _sow(module, 'units', units)


def sow_value(module: nn.Module, value: jax.Array) -> None:
  """Records the values `[...]` of observations."""
  _sow(module, 'values', value)


def _sow(module: nn.Module, name: str, value: jax.Array) -> None:
  if not module.is_initializing():
    module.sow(COLLECTION, name, value)


def make_measure(
  module: nn.Module, network_params: Callable[[Any], Any] = lambda x: x
) -> MeasureFn:
  """Returns a function that measures a network on a batch of observations.

  * `health/dead_share`: share of the sown units that are 0 for all observations
    (dead ReLUs; Lu et al. 2019, arXiv 1903.06733);
  * `health/value_std`: standard deviation of the values.

  It omits a metric for which nothing was sown. `module` maps `[T, B, ...]` and
  the core before them to outputs and a core; `network_params` picks its
  parameters from the acting parameters.
  """

  def measure(
    params: Any, inputs: types.AgentInput, core: Any
  ) -> dict[str, jax.Array]:
    variables = {'params': network_params(params)}
    _, sown = module.apply(variables, inputs, core, mutable=[COLLECTION])
    metrics = {}
    if units := _sown_values('units', sown):
      dead = [jnp.all(x <= 0, axis=0) for x in units]
      metrics['health/dead_share'] = jnp.mean(jnp.concatenate(dead))
    if values := _sown_values('values', sown):
      metrics['health/value_std'] = jnp.std(values[0])
    return metrics

  return measure


def _sown_values(name: str, sown: Any) -> list[jax.Array]:
  leaves_with_paths, _ = jax.tree_util.tree_flatten_with_path(sown)
  return [
    x.reshape((-1, x.shape[-1]))
    for path, x in leaves_with_paths
    if any(getattr(key, 'key', None) == name for key in path)
  ]
