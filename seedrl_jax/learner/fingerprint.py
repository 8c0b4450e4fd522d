"""One number for all the bits of a state, to compare hosts by.

`update` computes it on the devices; `joint_run` compares.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp


def fingerprint(leaves: Sequence[jax.Array]) -> jax.Array:
  """Returns a hash of arrays' bits, uint32.

  All counts, to the last bit: equal arrays have equal hashes, and others, but
  by a chance of 2^-32, have not.

  Args:
    leaves: arrays of any shapes and types.
  """
  total = jnp.zeros((), jnp.uint32)
  for leaf in leaves:
    bits = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
    words = jax.lax.bitcast_convert_type(
      bits, jnp.dtype(f'uint{8 * bits.dtype.itemsize}')
    ).astype(jnp.uint32)
    words = words.reshape(-1)
    # Odd, so that no bit is lost; and another for every place.
    place = 2 * jnp.arange(words.size, dtype=jnp.uint32) + 1
    mixed = (words ^ (words >> 15)) * jnp.uint32(0x2C1B3C6D)
    total = total * jnp.uint32(0x297A2D39) + jnp.sum(
      (mixed ^ (mixed >> 12)) * place, dtype=jnp.uint32
    )
  return total
