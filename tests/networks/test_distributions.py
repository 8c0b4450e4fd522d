"""Tests the distributions of actions against scipy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from scipy import stats

from seedrl_jax import types
from seedrl_jax.networks import distributions

_KEY = jax.random.key(0)
_FLOAT = np.dtype(np.float32)
# Their product is not 1, so that a density without them is seen.
_MIDDLE, _HALF = np.array([0.0, 0.5]), np.array([2.0, 1.5])
_BOX = types.ActionSpec(
  (2,), _FLOAT, tuple(_MIDDLE - _HALF), tuple(_MIDDLE + _HALF)
)
_CHOICES = types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (2, 4))


def _params(size, *shape, seed=0):
  return np.random.default_rng(seed).normal(size=(*shape, size)).astype('f4')


def _frozen(params, floor, first):
  """Returns scipy's Gaussian, scaled to the bounds of `_BOX`."""
  mean, log = np.split(params.astype(np.float64), 2, axis=-1)
  deviation = floor + first * np.exp(log)
  return stats.norm(_MIDDLE + _HALF * mean, _HALF * deviation)


@pytest.mark.parametrize('deviations', [(0.0, 1.0), (0.3, 0.5)])
def test_gaussian_is_scipys(deviations):
  gaussian = distributions.make(_BOX, *deviations)
  params, action = _params(4, 3, 5), _params(2, 3, 5, seed=2)
  expected = _frozen(params, *deviations)
  np.testing.assert_allclose(
    gaussian.log_prob(params, action),
    expected.logpdf(action).sum(-1),
    rtol=1e-5,
    atol=1e-5,
  )
  np.testing.assert_allclose(
    gaussian.entropy(params), expected.entropy().sum(-1), rtol=1e-5
  )
  np.testing.assert_allclose(gaussian.mode(params), expected.mean(), rtol=1e-5)


@pytest.mark.parametrize(
  ('low', 'high', 'middle', 'half'),
  [
    ([-2, 100], [2, 200], [0, 150], [2, 50]),
    # Infinite, as wide as infinite, or equal: not scaled.
    ([-np.inf, 0, 3], [1, np.inf, 3], [0, 0, 0], [1, 1, 1]),
    ([-3.4e38], [3.4e38], [0], [1]),
  ],
)
def test_scale_maps_finite_bounds_to_1(low, high, middle, half):
  action = types.ActionSpec((len(low),), _FLOAT, tuple(low), tuple(high))
  np.testing.assert_array_equal(distributions.scale(action), [middle, half])
  assert distributions.is_scaled(action) == (max(half) > 1)
  assert not distributions.is_scaled(_CHOICES)


@pytest.mark.parametrize('bound', [1.0, np.inf])
def test_gaussian_without_a_scale_is_the_plain_one_to_the_bit(bound):
  spec = types.ActionSpec((2,), _FLOAT, (-bound,) * 2, (bound,) * 2)
  gaussian = distributions.make(spec, 1e-3, 0.4)
  params, action = _params(4, 3, 5), _params(2, 3, 5, seed=2)

  def split(params):
    mean, log = jnp.split(params, 2, axis=-1)
    return mean, 1e-3 + 0.4 * jnp.exp(log)

  def sample(key, params):
    mean, deviation = split(params)
    return mean + deviation * jax.random.normal(key, mean.shape)

  def log_prob(params, action):
    log_density = jax.scipy.stats.norm.logpdf(action, *split(params))
    return jnp.sum(log_density, axis=-1)

  def entropy(params):
    log = jnp.log(split(params)[1])
    return jnp.sum(0.5 + 0.5 * np.log(2 * np.pi) + log, axis=-1)

  def outputs(sample, log_prob, entropy):
    def total(params):
      return (log_prob(params, action) + entropy(params)).sum()

    return sample(_KEY, params), jax.value_and_grad(total)(params)

  for jit in (jax.jit, lambda f, **_: f):
    run = jit(outputs, static_argnums=(0, 1, 2))
    chex.assert_trees_all_equal(
      run(gaussian.sample, gaussian.log_prob, gaussian.entropy),
      run(sample, log_prob, entropy),
    )


@pytest.mark.parametrize(
  'spec', [types.discrete(3), _CHOICES], ids=['one', 'several']
)
def test_categorical_is_scipys(spec):
  categorical = distributions.make(spec)
  params = _params(categorical.num_params, 7)
  action = spec.sample(np.random.default_rng(1), 7)
  sizes = [int(x) + 1 for x in spec.maximum]
  log_prob, entropy = np.zeros((2, 7))
  ends = np.cumsum(sizes)
  for i, (end, size) in enumerate(zip(ends, sizes, strict=True)):
    p = np.exp(params[:, end - size : end].astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    log_prob += np.log(p[np.arange(7), action.reshape((7, -1))[:, i]])
    entropy += stats.entropy(p, axis=-1)
  for ours, expected in (
    (categorical.log_prob(params, action), log_prob),
    (categorical.entropy(params), entropy),
  ):
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


class VariantsTest(parameterized.TestCase):
  @chex.all_variants()
  def test_density_and_entropy_of_a_standard_gaussian(self):
    gaussian = distributions.make(_BOX)
    params = np.zeros((2, 4), np.float32)
    action = np.tile(np.float32(_MIDDLE), (2, 1))
    log_prob = self.variant(gaussian.log_prob)(params, action)
    # At its mean, half a nat per number above minus the entropy.
    entropy = self.variant(gaussian.entropy)(params)
    expected = np.log(2 * np.pi) + np.log(_HALF).sum()
    np.testing.assert_allclose(log_prob, [-expected] * 2, rtol=1e-5)
    np.testing.assert_allclose(entropy, [expected + 1] * 2, rtol=1e-5)


_SPECS = {
  'one': types.discrete(3),
  'several': _CHOICES,
  'box': _BOX,
  'hybrid': types.hybrid([types.discrete(3), _BOX, _CHOICES]),
}
_ALL = pytest.mark.parametrize('spec', _SPECS.values(), ids=_SPECS)


def test_hybrid_is_the_product_of_its_parts():
  hybrid = distributions.make(_SPECS['hybrid'], 0.1)
  params = _params(hybrid.num_params, 7)
  assert (hybrid.num_params, hybrid.num_deviations) == (3 + 4 + 8, 2)
  others, deviations = params[:, :-2], params[:, -2:]
  parts = [
    (types.discrete(3), others[:, :3]),
    (_BOX, np.concatenate([others[:, 3:5], deviations], axis=-1)),
    (_CHOICES, others[:, 5:]),
  ]
  rng = np.random.default_rng(1)
  actions = [spec.sample(rng, 7) for spec, _ in parts]
  action = np.concatenate([x.reshape((7, -1)) for x in actions], axis=-1)
  makes = [(distributions.make(spec, 0.1), x) for spec, x in parts]
  np.testing.assert_allclose(
    hybrid.log_prob(params, action),
    sum(d.log_prob(x, a) for (d, x), a in zip(makes, actions, strict=True)),
    rtol=1e-5,
  )
  np.testing.assert_allclose(
    hybrid.entropy(params), sum(d.entropy(x) for d, x in makes), rtol=1e-5
  )
  modes = [np.reshape(d.mode(x), (7, -1)) for d, x in makes]
  np.testing.assert_array_equal(
    hybrid.mode(params), np.concatenate(modes, axis=-1)
  )


@_ALL
def test_kl_is_the_mean_of_the_ratios_logarithm(spec):
  distribution = distributions.make(spec, 0.1)
  p, q = (
    jnp.tile(_params(distribution.num_params, seed=seed), (20_000, 1))
    for seed in (1, 2)
  )
  action = distribution.sample(_KEY, p)
  ratio = distribution.log_prob(p, action) - distribution.log_prob(q, action)
  # Five standard errors.
  error = 5.0 * np.std(ratio) / np.sqrt(20_000)
  kl = distribution.kl(p[:1], q[:1])
  np.testing.assert_allclose(np.mean(ratio), kl[0], atol=error)
  assert kl > 0.1 and distribution.kl(p[:1], p[:1]) == 0


@_ALL
def test_samples_have_their_log_probabilities(spec):
  distribution = distributions.make(spec)
  params = jnp.tile(_params(distribution.num_params), (20_000, 1))
  action = distribution.sample(_KEY, params)
  assert action.shape == (20_000, *spec.shape)
  assert action.dtype == spec.dtype
  # The mean of -log p is the entropy; five standard errors.
  surprise = -distribution.log_prob(params, action)
  error = 5.0 * np.std(surprise) / np.sqrt(20_000)
  np.testing.assert_allclose(
    np.mean(surprise), distribution.entropy(params)[0], atol=error
  )
  mode = distribution.mode(params[:1])
  assert (distribution.log_prob(params[:1], mode) >= -surprise).all()


def test_squashed_gaussian_stays_within_its_bounds():
  squashed = distributions.TanhGaussian(_BOX)
  params = jnp.tile(_params(4), (1000, 1))
  action, log_prob = squashed.sample_and_log_prob(_KEY, params)
  assert (action >= jnp.array(_BOX.minimum)).all()
  assert (action <= jnp.array(_BOX.maximum)).all()
  np.testing.assert_allclose(squashed.sample(_KEY, params), action)
  # By the change of variables, from the action alone.
  mean, raw = np.split(np.array(params, np.float64), 2, axis=-1)
  deviation = np.exp(-5.0 + 3.5 * (np.tanh(raw) + 1.0))
  unit = (np.array(action, np.float64) - _MIDDLE) / _HALF
  density = stats.norm(mean, deviation).logpdf(np.arctanh(unit))
  slope = np.log((1.0 - unit**2) * _HALF)
  inside = (np.abs(unit) < 0.99).all(-1)
  assert inside.sum() > 100
  np.testing.assert_allclose(
    log_prob[inside], (density - slope).sum(-1)[inside], rtol=1e-3, atol=1e-3
  )


@pytest.mark.parametrize('number', [-60.0, -9.0, 0.0, 9.0, 60.0])
def test_squashed_density_is_right_at_the_edges(number):
  squashed = distributions.TanhGaussian(_BOX)
  params = np.array([number, number, 0.0, 0.0], np.float32)
  numbers = params[:2] + np.float32(0.5)
  density = stats.norm(number, np.exp(-1.5)).logpdf(numbers.astype(np.float64))
  # log(1 - tanh(x)^2) = -2 log cosh(x), which float64 holds for all these.
  slope = -2.0 * np.log(np.cosh(numbers.astype(np.float64)))
  expected = (density - slope - np.log(_HALF)).sum()
  value, gradient = jax.value_and_grad(squashed.log_prob_of)(params, numbers)
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  assert np.isfinite(gradient).all()
