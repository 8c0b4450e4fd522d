"""Output heads on a network's features.

Heads compute in float32: rounding to bfloat16 would show in importance weights
and in the choice of the best action.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp


class PolicyHead(nn.Module):
  """Linear logits of a categorical policy, nearly uniform at the start."""

  num_actions: int

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to float32 logits `[..., A]`."""
    # A small scale makes the first policies explore, whatever the torso.
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


class QHead(nn.Module):
  """Action values in a single stream; linear if `hidden_size` is 0."""

  num_actions: int
  hidden_size: int

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to float32 action values `[..., A]`."""
    hidden = _hidden(features, self.hidden_size, 'hidden')
    return nn.Dense(self.num_actions, dtype=jnp.float32, name='q')(hidden)


class DuelingHead(nn.Module):
  """Action values from a value and an advantage stream.

  Q = V + A - mean A, equation 9 of Wang et al. 2016 (arXiv 1511.06581). The
  mean cancels a bias of the advantages, so they have none.
  """

  num_actions: int
  hidden_size: int  # of each stream; 0: both are linear

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to float32 action values `[..., A]`."""
    hidden = _hidden(features, self.hidden_size, 'value_hidden')
    value = nn.Dense(1, dtype=jnp.float32, name='value')(hidden)
    hidden = _hidden(features, self.hidden_size, 'advantage_hidden')
    advantage = nn.Dense(
      self.num_actions, use_bias=False, dtype=jnp.float32, name='advantage'
    )(hidden)
    return value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)


def _hidden(features: jax.Array, size: int, name: str) -> jax.Array:
  """Adds a hidden layer to the calling module; none if `size` is 0."""
  if not size:
    return features
  return nn.relu(nn.Dense(size, dtype=jnp.float32, name=name)(features))
