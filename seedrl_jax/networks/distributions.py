"""Distributions of actions, as functions of a network's outputs.

Parameters are float32 `[..., P]`, actions `[..., *shape]`. rlax's distributions
give way to distrax's, which import TensorFlow Probability: too heavy for these
few formulas.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

from seedrl_jax import types

# Bounds of the logarithm of a squashed Gaussian's deviation.
_LOG_DEVIATION_BOUNDS = (-5.0, 2.0)


class Distribution(Protocol):
  """Independent choices of all numbers of an action."""

  @property
  def num_params(self) -> int:
    """P."""
    ...

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array: ...

  def mode(self, params: jax.Array) -> jax.Array: ...

  def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
    """Returns log p(action), float32 `[...]`."""
    ...

  def entropy(self, params: jax.Array) -> jax.Array:
    """Returns nats, float32 `[...]`."""
    ...


@dataclasses.dataclass(frozen=True)
class Categorical:
  """One discrete choice, or several; parameters are all choices' logits.

  Attributes:
    sizes: number of values of each choice, in C order.
    shape: of an action; () for one choice.
  """

  sizes: tuple[int, ...]
  shape: tuple[int, ...] = ()

  @property
  def num_params(self) -> int:
    return sum(self.sizes)

  def _logits(self, params: jax.Array) -> list[jax.Array]:
    """Splits `params` into normalised logits of each choice."""
    parts = jnp.split(params, np.cumsum(self.sizes)[:-1].tolist(), axis=-1)
    return [jax.nn.log_softmax(part) for part in parts]

  def _action(self, choices: list[jax.Array]) -> jax.Array:
    action = jnp.stack(choices, axis=-1).astype(jnp.int32)
    return action.reshape((*choices[0].shape, *self.shape))

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array:
    logits = self._logits(params)
    keys = [key] if len(logits) == 1 else jax.random.split(key, len(logits))
    return self._action(list(map(jax.random.categorical, keys, logits)))

  def mode(self, params: jax.Array) -> jax.Array:
    return self._action([jnp.argmax(x, axis=-1) for x in self._logits(params)])

  def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
    choices = action.reshape((*params.shape[:-1], len(self.sizes)))
    # A gather's gradient would be a slow scatter.
    taken = [
      jax.nn.one_hot(choices[..., i], size) for i, size in enumerate(self.sizes)
    ]
    logits = jnp.concatenate(self._logits(params), axis=-1)
    return jnp.sum(jnp.concatenate(taken, axis=-1) * logits, axis=-1)

  def entropy(self, params: jax.Array) -> jax.Array:
    logits = jnp.concatenate(self._logits(params), axis=-1)
    return -jnp.sum(jnp.exp(logits) * logits, axis=-1)


@dataclasses.dataclass(frozen=True)
class Gaussian:
  """Numbers with means and deviations; parameters are `[mean, log]`.

  A deviation is `min_deviation` + `first_deviation` exp(log), so that its
  gradient never vanishes.
  """

  shape: tuple[int, ...]
  min_deviation: float = 0.0
  first_deviation: float = 1.0

  @property
  def num_params(self) -> int:
    return 2 * int(np.prod(self.shape))

  def _split(self, params: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns means and deviations `[..., P / 2]`."""
    mean, log = jnp.split(params, 2, axis=-1)
    return mean, self.min_deviation + self.first_deviation * jnp.exp(log)

  def _action(self, numbers: jax.Array) -> jax.Array:
    return numbers.reshape((*numbers.shape[:-1], *self.shape))

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array:
    mean, deviation = self._split(params)
    noise = jax.random.normal(key, mean.shape)
    return self._action(mean + deviation * noise)

  def mode(self, params: jax.Array) -> jax.Array:
    return self._action(self._split(params)[0])

  def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
    mean, deviation = self._split(params)
    numbers = action.reshape(mean.shape)
    return jnp.sum(stats.norm.logpdf(numbers, mean, deviation), axis=-1)

  def entropy(self, params: jax.Array) -> jax.Array:
    _, deviation = self._split(params)
    return jnp.sum(0.5 + 0.5 * np.log(2 * np.pi) + jnp.log(deviation), axis=-1)


@dataclasses.dataclass(frozen=True)
class TanhGaussian:
  """Gaussian numbers, squashed by tanh and scaled to an action's bounds.

  Haarnoja et al. 2018 (arXiv 1801.01290, appendix C). Parameters are means and
  raw deviations, of which tanh keeps the logarithm in [-5, 2].
  """

  action: types.ActionSpec

  @property
  def num_params(self) -> int:
    return 2 * len(self.action.minimum)

  def _split(self, params: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean, raw = jnp.split(params, 2, axis=-1)
    low, high = _LOG_DEVIATION_BOUNDS
    log = low + 0.5 * (high - low) * (jnp.tanh(raw) + 1.0)
    return mean, jnp.exp(log)

  def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
    low, high = self.action.minimum, self.action.maximum
    return np.array(low, np.float32), np.array(high, np.float32)

  def squash(self, numbers: jax.Array) -> jax.Array:
    """Maps numbers `[..., P / 2]` to actions."""
    low, high = self._bounds()
    action = 0.5 * (low + high) + 0.5 * (high - low) * jnp.tanh(numbers)
    return action.reshape((*numbers.shape[:-1], *self.action.shape))

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array:
    return self.sample_and_log_prob(key, params)[0]

  def mode(self, params: jax.Array) -> jax.Array:
    return self.squash(self._split(params)[0])

  def log_prob_of(self, params: jax.Array, numbers: jax.Array) -> jax.Array:
    """Returns log p(squash(numbers)), float32 `[...]`.

    Of the action itself it could not be told at the edges, where tanh rounds
    to 1.
    """
    # log(1 - tanh(x)^2) without the cancellation.
    log_slope = 2.0 * (np.log(2.0) - numbers - jax.nn.softplus(-2.0 * numbers))
    low, high = self._bounds()
    log_slope += np.log(0.5 * (high - low))
    log_density = stats.norm.logpdf(numbers, *self._split(params))
    return jnp.sum(log_density - log_slope, axis=-1)

  def sample_and_log_prob(
    self, key: jax.Array, params: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns an action and its log-density, with gradients through both."""
    mean, deviation = self._split(params)
    numbers = mean + deviation * jax.random.normal(key, mean.shape)
    return self.squash(numbers), self.log_prob_of(params, numbers)


def make(
  action: types.ActionSpec,
  min_deviation: float = 0.0,
  first_deviation: float = 1.0,
) -> Categorical | Gaussian:
  """Makes the distribution of an on-policy agent.

  A Gaussian knows no bounds: an environment's stream clips its actions.
  """
  if action.kind == 'continuous':
    return Gaussian(action.shape, min_deviation, first_deviation)
  sizes = tuple(int(high) + 1 for high in action.maximum)
  return Categorical(sizes, action.shape)
