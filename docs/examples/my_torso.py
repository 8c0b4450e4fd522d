"""A network of one's own: from observations to features."""

import flax.linen as nn
import jax
import ml_collections


class ResidualTorso(nn.Module):
  """Dense layers, each added to what it was given."""

  size: int
  layers: int = 2

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """Maps `[N, ...]` to `[N, size]`."""
    x = nn.Dense(self.size)(x.reshape((len(x), -1)))
    for _ in range(self.layers):
      x = x + nn.relu(nn.Dense(self.size)(x))
    return x


def make(network: ml_collections.ConfigDict) -> nn.Module:
  """Returns the module; --config.network.torso=my_torso:make names this."""
  return ResidualTorso(network.hidden_sizes[0])
