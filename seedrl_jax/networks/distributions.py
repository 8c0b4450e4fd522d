"""Distributions of actions, as functions of a network's outputs.

Parameters are float32 `[..., P]`, with P `num_params`. Actions are
`[..., *shape]`; log-probabilities and entropies, in nats, are float32 `[...]`.
`max_entropy` is that of the uniform policy, or 0 unless actions are discrete.
The last `num_deviations` parameters are logarithms of deviations. `kl(p, q)` is
KL(p, q) of two policies, float32 `[...]`. rlax's distributions are deprecated,
and distrax imports TensorFlow Probability.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import stats

from seedrl_jax import types

# Bounds of the logarithm of a squashed Gaussian's deviation.
_LOG_DEVIATION_BOUNDS = (-5.0, 2.0)


def scale(action: types.ActionSpec) -> tuple[np.ndarray, np.ndarray]:
  """Returns the middle and half the width of bounds, float32 `[N]` each.

  They map -1 and 1 to the bounds of each of the N numbers of a continuous
  action. A number without two finite and different bounds has 0 and 1.
  """
  low = np.array(action.minimum, np.float32)
  high = np.array(action.maximum, np.float32)
  # The width of the largest floats is infinite: no bounds.
  with np.errstate(over='ignore', invalid='ignore'):
    middle, half = 0.5 * low + 0.5 * high, 0.5 * (high - low)
  is_bounded = np.isfinite(half) & (half > 0)
  return np.where(is_bounded, middle, 0.0), np.where(is_bounded, half, 1.0)


def is_scaled(action: types.ActionSpec) -> bool:
  """Returns whether `scale` changes an action, which must be continuous."""
  middle, half = scale(action)
  return not action.is_discrete and bool(
    (middle != 0).any() | (half != 1).any()
  )


@dataclasses.dataclass(frozen=True)
class Categorical:
  """One discrete choice, or several; parameters are all choices' logits."""

  sizes: tuple[int, ...]  # number of values of each choice, in C order
  shape: tuple[int, ...] = ()  # of an action; () for one choice
  num_deviations = 0

  @property
  def num_params(self) -> int:
    return sum(self.sizes)

  @property
  def max_entropy(self) -> float:
    return float(np.log(self.sizes).sum())

  def _logits(self, params: jax.Array) -> list[jax.Array]:
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

  def log_probs(self, params: jax.Array) -> jax.Array:
    """Returns the log-probability of each value of each choice, `[..., P]`."""
    return jnp.concatenate(self._logits(params), axis=-1)

  def one_hot(self, action: jax.Array) -> jax.Array:
    """Returns the one-hot codes of all choices of actions, `[..., P]`."""
    leading = action.shape[: action.ndim - len(self.shape)]
    choices = action.reshape((*leading, len(self.sizes)))
    codes = [
      jax.nn.one_hot(choices[..., i], size) for i, size in enumerate(self.sizes)
    ]
    return jnp.concatenate(codes, axis=-1)

  def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
    # A gather's gradient would be a slow scatter.
    return jnp.sum(self.one_hot(action) * self.log_probs(params), axis=-1)

  def entropy(self, params: jax.Array) -> jax.Array:
    logits = self.log_probs(params)
    return -jnp.sum(jnp.exp(logits) * logits, axis=-1)

  def kl(self, p: jax.Array, q: jax.Array) -> jax.Array:
    log_p, log_q = self.log_probs(p), self.log_probs(q)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


@dataclasses.dataclass(frozen=True)
class _Scaled:
  """Numbers of which -1 and 1 are scaled to the bounds of `action`."""

  action: types.ActionSpec

  @property
  def num_params(self) -> int:
    return 2 * len(self.action.minimum)

  def _scale(self, numbers: jax.Array) -> jax.Array:
    """Maps numbers `[..., P / 2]` to actions."""
    middle, half = scale(self.action)
    action = middle + half * numbers
    return action.reshape((*numbers.shape[:-1], *self.action.shape))


@dataclasses.dataclass(frozen=True)
class Gaussian(_Scaled):
  """Gaussian numbers, of which -1 and 1 are scaled to an action's bounds.

  Actions may leave the bounds. Parameters are `[mean, log]`, before scaling. A
  deviation is `min_deviation` + `first_deviation` exp(log), so that its
  gradient never vanishes.
  """

  min_deviation: float = 0.0
  first_deviation: float = 1.0
  max_entropy = 0.0

  @property
  def num_deviations(self) -> int:
    return self.num_params // 2

  def _split(self, params: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns means and deviations `[..., P / 2]`."""
    mean, log = jnp.split(params, 2, axis=-1)
    return mean, self.min_deviation + self.first_deviation * jnp.exp(log)

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array:
    mean, deviation = self._split(params)
    noise = jax.random.normal(key, mean.shape)
    return self._scale(mean + deviation * noise)

  def mode(self, params: jax.Array) -> jax.Array:
    return self._scale(self._split(params)[0])

  def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
    mean, deviation = self._split(params)
    middle, half = scale(self.action)
    numbers = (action.reshape(mean.shape) - middle) / half
    log_density = stats.norm.logpdf(numbers, mean, deviation)
    return jnp.sum(log_density - np.log(half), axis=-1)

  def entropy(self, params: jax.Array) -> jax.Array:
    _, deviation = self._split(params)
    _, half = scale(self.action)
    entropies = 0.5 + 0.5 * np.log(2 * np.pi) + jnp.log(deviation)
    return jnp.sum(entropies + np.log(half), axis=-1)

  def kl(self, p: jax.Array, q: jax.Array) -> jax.Array:
    mean_p, deviation_p = self._split(p)
    mean_q, deviation_q = self._split(q)
    ratio = deviation_p / deviation_q
    distance = (mean_p - mean_q) / deviation_q
    terms = jnp.square(ratio) + jnp.square(distance) - 1.0
    return jnp.sum(0.5 * terms - jnp.log(ratio), axis=-1)


@dataclasses.dataclass(frozen=True)
class TanhGaussian(_Scaled):
  """Gaussian numbers, squashed by tanh and scaled to an action's bounds.

  Haarnoja et al. 2018 (arXiv 1801.01290, appendix C). Parameters are means and
  raw deviations, of which tanh keeps the logarithm in [-5, 2].
  """

  def _split(self, params: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean, raw = jnp.split(params, 2, axis=-1)
    low, high = _LOG_DEVIATION_BOUNDS
    log = low + 0.5 * (high - low) * (jnp.tanh(raw) + 1.0)
    return mean, jnp.exp(log)

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array:
    return self.sample_and_log_prob(key, params)[0]

  def mode(self, params: jax.Array) -> jax.Array:
    return self._scale(jnp.tanh(self._split(params)[0]))

  def log_prob_of(self, params: jax.Array, numbers: jax.Array) -> jax.Array:
    """Returns the log-density of the action for numbers before tanh.

    An action at the edges, where tanh rounds to 1, does not determine it.
    """
    # log(1 - tanh(x)^2) without the cancellation.
    log_slope = 2.0 * (np.log(2.0) - numbers - jax.nn.softplus(-2.0 * numbers))
    log_slope += np.log(scale(self.action)[1])
    log_density = stats.norm.logpdf(numbers, *self._split(params))
    return jnp.sum(log_density - log_slope, axis=-1)

  def sample_and_log_prob(
    self, key: jax.Array, params: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns an action and its log-density, with gradients through both."""
    mean, deviation = self._split(params)
    numbers = mean + deviation * jax.random.normal(key, mean.shape)
    action = self._scale(jnp.tanh(numbers))
    return action, self.log_prob_of(params, numbers)


@dataclasses.dataclass(frozen=True)
class Hybrid:
  """Independent parts of an action, one vector of their numbers."""

  action: types.ActionSpec
  parts: tuple['Distribution', ...]
  max_entropy = 0.0

  @property
  def num_params(self) -> int:
    return sum(part.num_params for part in self.parts)

  @property
  def num_deviations(self) -> int:
    return sum(part.num_deviations for part in self.parts)

  def legal_params(self, legal: jax.Array) -> jax.Array:
    """Returns which parameters are legal, bool `[..., P]`.

    `legal`, bool, says it of the logits of all discrete choices, in order. All
    other parameters are legal.
    """
    leading, rows, start = legal.shape[:-1], [], 0
    for part in self.parts:
      size = part.num_params - part.num_deviations
      if isinstance(part, Categorical):
        rows.append(legal[..., start : start + size])
        start += size
      else:
        rows.append(jnp.ones((*leading, size), bool))
    rows.append(jnp.ones((*leading, self.num_deviations), bool))
    return jnp.concatenate(rows, axis=-1)

  def _sections(
    self, params: jax.Array
  ) -> list[tuple['Distribution', jax.Array]]:
    sections = []
    start, start_deviation = 0, self.num_params - self.num_deviations
    for part in self.parts:
      stop = start + part.num_params - part.num_deviations
      stop_deviation = start_deviation + part.num_deviations
      others = params[..., start:stop]
      deviations = params[..., start_deviation:stop_deviation]
      section = jnp.concatenate([others, deviations], axis=-1)
      sections.append((part, section))
      start, start_deviation = stop, stop_deviation
    return sections

  def _join(
    self, actions: list[jax.Array], leading: tuple[int, ...]
  ) -> jax.Array:
    rows = [x.reshape((*leading, -1)).astype(jnp.float32) for x in actions]
    return jnp.concatenate(rows, axis=-1)

  def sample(self, key: jax.Array, params: jax.Array) -> jax.Array:
    keys = jax.random.split(key, len(self.parts))
    pairs = zip(keys, self._sections(params), strict=True)
    samples = [part.sample(k, x) for k, (part, x) in pairs]
    return self._join(samples, params.shape[:-1])

  def mode(self, params: jax.Array) -> jax.Array:
    modes = [part.mode(x) for part, x in self._sections(params)]
    return self._join(modes, params.shape[:-1])

  def log_prob(self, params: jax.Array, action: jax.Array) -> jax.Array:
    actions = [
      numbers.reshape((*numbers.shape[:-1], *spec.shape)).astype(spec.dtype)
      for spec, numbers in self.action.split(action)
    ]
    pairs = zip(self._sections(params), actions, strict=True)
    terms = [part.log_prob(x, y) for (part, x), y in pairs]
    return sum(terms, jnp.zeros(()))

  def entropy(self, params: jax.Array) -> jax.Array:
    terms = [part.entropy(x) for part, x in self._sections(params)]
    return sum(terms, jnp.zeros(()))

  def kl(self, p: jax.Array, q: jax.Array) -> jax.Array:
    pairs = zip(self._sections(p), self._sections(q), strict=True)
    terms = [part.kl(x, y) for (part, x), (_, y) in pairs]
    return sum(terms, jnp.zeros(()))


Distribution = Categorical | Gaussian | Hybrid


def make(
  action: types.ActionSpec,
  min_deviation: float = 0.0,
  first_deviation: float = 1.0,
) -> Distribution:
  """Makes the distribution of an on-policy agent.

  An environment's stream clips a Gaussian's actions to their bounds.
  """
  if action.parts:
    parts = [make(x, min_deviation, first_deviation) for x in action.parts]
    return Hybrid(action, tuple(parts))
  if action.kind == 'continuous':
    return Gaussian(action, min_deviation, first_deviation)
  return Categorical(action.sizes, action.shape)
