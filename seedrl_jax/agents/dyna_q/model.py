"""The world model: predicts what an action leads to."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections

from seedrl_jax.networks import torsos


class Prediction(NamedTuple):
  """What N actions lead to."""

  observation: jax.Array  # float32 [N, F]
  reward: jax.Array  # float32 [N]
  termination: jax.Array  # float32 [N], logit of its probability


# Maps observations `[N, F]` and actions `[N]` to what they lead to.
PredictFn = Callable[[jax.Array, jax.Array], Prediction]


class Model(nn.Module):
  """An MLP on observation and action, with a head for each prediction."""

  config: ml_collections.FrozenConfigDict  # config.model
  num_actions: int

  @nn.compact
  def __call__(self, observation: jax.Array, action: jax.Array) -> Prediction:
    """Maps float `[N, F]` and int32 `[N]` to a `Prediction`."""
    chex.assert_rank([observation, action], [2, 1])
    config = self.config
    state = nn.Dense(config.observation_size, name='observation')(observation)
    # Without ReLU: a single unit could be 0 for all actions.
    code = nn.Dense(config.action_size, name='action')(
      jax.nn.one_hot(action, self.num_actions)
    )
    x = jnp.concatenate([nn.relu(state), code], axis=-1)
    x = torsos.MLP(config.hidden_sizes, name='hidden')(x)

    def head(name: str, size: int) -> jax.Array:
      # The first rollouts should stay near their start.
      init = nn.initializers.orthogonal(0.01)
      return nn.Dense(size, kernel_init=init, name=name)(x)

    return Prediction(
      # Most numbers of an observation change little.
      observation + head('change', observation.shape[-1]),
      head('reward', 1)[:, 0],
      head('termination', 1)[:, 0],
    )
