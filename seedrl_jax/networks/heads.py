"""What reads an answer off a network's features; agents pick their heads.

Heads compute in float32 whatever the features are: the rounding of bfloat16
would show in importance weights, which divide one policy by another.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


class PolicyHead(nn.Module):
  """Linear logits of a categorical policy, nearly uniform at the start.

  Attributes:
    num_actions: A.
  """

  num_actions: int

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to float32 logits `[..., A]`."""
    # A small scale keeps the first policies exploring, whatever the torso.
    init = nn.initializers.orthogonal(0.01)
    dense = nn.Dense(self.num_actions, dtype=jnp.float32, kernel_init=init)
    return dense(features)


class BaselineHead(nn.Module):
  """Linear estimate of the return."""

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to a float32 baseline `[...]`."""
    init = nn.initializers.orthogonal(1.0)
    dense = nn.Dense(1, dtype=jnp.float32, kernel_init=init)
    return jnp.squeeze(dense(features), axis=-1)
