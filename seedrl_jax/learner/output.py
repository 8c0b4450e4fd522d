"""An update's output, with its metrics as one array."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seedrl_jax.agents import base


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=['values'],
  meta_fields=['names'],
)
@dataclasses.dataclass(frozen=True)
class Metrics:
  """Metrics as one array, because every result of a program takes time.

  Attributes:
    values: float32 `[M]`, the same on all devices.
    names: one per value.
  """

  values: jax.Array
  names: tuple[str, ...]

  @classmethod
  def pack(cls, metrics: Mapping[str, jax.Array]) -> 'Metrics':
    """Packs scalars, sorted by name; raises ValueError for other shapes."""
    names = tuple(sorted(metrics))
    for name in names:
      if shape := jnp.shape(metrics[name]):
        raise ValueError(
          f'The metric {name} has the shape {shape}; return a scalar.'
        )
    return cls(jnp.array([metrics[x] for x in names], jnp.float32), names)

  def fetch(self) -> dict[str, float]:
    """Returns the metrics on the host."""
    values = jax.device_get(self.values.addressable_data(0))
    return dict(zip(self.names, values.tolist(), strict=True))


class Output(NamedTuple):
  """A `base.UpdateOutput`, packed; its priorities lead with `[D]`."""

  metrics: Metrics
  finite: jax.Array
  priorities: jax.Array | None


def pack(output: base.UpdateOutput) -> Output:
  """Packs what an agent's update returns."""
  return Output(Metrics.pack(output.metrics), output.finite, output.priorities)
