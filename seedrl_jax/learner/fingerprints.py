"""Compares states on several devices and hosts by a few numbers of each."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Difference between hosts, as a share of an array's norm, that rounding may
# explain: they may round differently in every update.
_TOLERANCE = 1e-3


def fingerprint(leaves: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
  """Returns a uint32 hash of integer arrays, and sums `[F, 2]` of the floats.

  Different integers have equal hashes with a chance of 2^-32. The sums are of
  an array's values, weighted by their places, and its norm.
  """
  total, sums = jnp.zeros((), jnp.uint32), []
  for leaf in leaves:
    values = leaf.reshape(-1)
    if jnp.issubdtype(values.dtype, jnp.floating):
      values = values.astype(jnp.float32)
      place = jnp.cos(jnp.arange(values.size, dtype=jnp.float32))
      # Not a product of matrices, which accelerators round to 8 or 10 bits.
      sums.append(jnp.stack([jnp.sum(values * place), jnp.linalg.norm(values)]))
      continue
    words = values.astype(jnp.uint32)
    # Odd, so that no bit is lost; different for every place.
    place = 2 * jnp.arange(words.size, dtype=jnp.uint32) + 1
    mixed = (words ^ (words >> 15)) * jnp.uint32(0x2C1B3C6D)
    total = total * jnp.uint32(0x297A2D39) + jnp.sum(
      (mixed ^ (mixed >> 12)) * place, dtype=jnp.uint32
    )
  return total, jnp.reshape(jnp.array(sums, jnp.float32), (-1, 2))


def are_alike(a: Sequence[float], b: Sequence[float]) -> bool:
  """Whether fingerprints are of equal states, except for rounding errors."""
  sums, others = (np.reshape(x[1:], (-1, 2)) for x in (a, b))
  norms = np.nan_to_num(np.maximum(sums[:, 1:], others[:, 1:]))
  close = np.isclose(sums, others, 0.0, _TOLERANCE * norms, equal_nan=True)
  return a[0] == b[0] and bool(close.all())
