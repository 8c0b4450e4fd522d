"""What reads an answer off a network's features; agents pick their heads.

Heads compute in float32 whatever the features are: the rounding of bfloat16
would show in importance weights, which divide one policy by another, and in
which action's value is the largest.
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


class QHead(nn.Module):
  """Action values, by one stream.

  Attributes:
    num_actions: A.
    hidden_size: units of the hidden layer; 0: none, the head is linear.
  """

  num_actions: int
  hidden_size: int

  @nn.compact
  def __call__(self, features: jax.Array) -> jax.Array:
    """Maps features `[..., F]` to float32 action values `[..., A]`."""
    hidden = _hidden(features, self.hidden_size, 'hidden')
    return nn.Dense(self.num_actions, dtype=jnp.float32, name='q')(hidden)


class DuelingHead(nn.Module):
  """Action values by a value and an advantage stream.

  Q = V + A - mean A, equation 9 of Wang et al. 2016 (arXiv 1511.06581). The
  mean takes away what a bias of the advantages would add to all of them.

  Attributes:
    num_actions: A.
    hidden_size: units of each stream's hidden layer; 0: none, both are linear.
  """

  num_actions: int
  hidden_size: int

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
  """Adds a hidden layer to the module that calls this; 0 units: none."""
  if not size:
    return features
  return nn.relu(nn.Dense(size, dtype=jnp.float32, name=name)(features))
