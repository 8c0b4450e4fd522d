"""Masks of illegal actions, on logits and on action values."""

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types

# In place of the logits and values of illegal actions. Finite, so that no
# product with a probability of 0 is NaN.
ILLEGAL = -1e9


def legal_values(mask: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
  """Returns which values are legal, bool `[..., P]`, of masks `[..., P]`.

  A choice without a legal one has all: that is LAST, whose action is ignored.
  """
  parts = jnp.split(mask != 0, np.cumsum(sizes)[:-1].tolist(), axis=-1)
  return jnp.concatenate(
    [x | ~x.any(axis=-1, keepdims=True) for x in parts], axis=-1
  )


def apply(values: jax.Array, legal: jax.Array | None) -> jax.Array:
  """Returns logits or values `[..., P]` with illegal ones `ILLEGAL`."""
  return values if legal is None else jnp.where(legal, values, ILLEGAL)


def split(
  observation: types.Nest, key: str, leading: int
) -> tuple[types.Nest, jax.Array]:
  """Returns an observation without its mask, and the mask, bool `[..., P]`.

  `leading` is the number of batch axes.
  """
  rest = {k: x for k, x in observation.items() if k != key}
  mask = observation[key]
  return rest, mask.reshape((*mask.shape[:leading], -1)) != 0
