"""Tests running statistics against NumPy over all numbers at once."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents import normalization as lib
from tests.agents import sequences


def _on(num_devices, fn):
  return jax.pmap(fn, axis_name=base.AXIS, devices=jax.devices()[:num_devices])


def _replicate(num_devices, tree):
  return jax.tree.map(lambda x: np.stack([x] * num_devices), tree)


def _merge_all(num_devices, batches, counts):
  """Merges batches, their columns divided over devices."""
  old = _replicate(num_devices, lib.initial(batches[0].shape[2:]))
  merge = _on(num_devices, lib.merge)
  for x, valid in zip(batches, counts, strict=True):
    pieces = (
      np.stack(np.split(part, num_devices, axis=1)) for part in (x, valid)
    )
    old = merge(old, *pieces)
  return jax.device_get(old)


@pytest.mark.parametrize('num_devices', [1, 4])
@pytest.mark.parametrize('offset', [0.0, 1e3])
def test_equals_the_moments_of_all_numbers(num_devices, offset):
  rng = np.random.default_rng(0)
  scale = np.array([0.1, 1.0, 30.0], np.float32)
  sizes = (3, 1, 7, 40)
  batches = [
    (rng.normal(size=(t, 8, 3)) * scale + offset + t).astype(np.float32)
    for t in sizes
  ]
  counts = [rng.random((t, 8)) < 0.7 for t in sizes]
  # A batch, and a device's share, without any.
  counts[1][:] = False
  counts[2][:, :2] = False
  actual = _merge_all(num_devices, batches, counts)
  for leaf in actual:
    assert (leaf == leaf[:1]).all(), 'devices differ'
  every = np.concatenate([
    np.float64(x)[valid] for x, valid in zip(batches, counts, strict=True)
  ])
  num, mean, var = (x[0] for x in actual)
  assert num == len(every)
  np.testing.assert_allclose(mean, every.mean(0), rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(var, every.var(0), rtol=1e-4)


def test_without_numbers_nothing_changes():
  none = np.zeros((2, 1), bool)
  actual = _merge_all(1, [np.full((2, 1, 3), np.nan, np.float32)], [none])
  for a, b in zip(actual, lib.initial((3,)), strict=True):
    np.testing.assert_array_equal(a[0], b)


class VariantsTest(parameterized.TestCase):
  @chex.all_variants()
  def test_scales_observations_and_counts_returns(self):
    statistics = lib.Statistics(np.float32(9), np.float32(1), np.float32(4))
    x = np.array([3.0, -99.0], np.float32)
    normalize = self.variant(functools.partial(lib.normalize, clip=5.0))
    np.testing.assert_allclose(normalize(statistics, x), [1.0, -5.0])
    reward, first = np.array([2.0, 2.0], np.float32), np.array([False, True])
    count = self.variant(functools.partial(lib.next_return, discount=0.5))
    np.testing.assert_allclose(count(x, reward, first), [3.5, 0.0])

  @chex.all_variants()
  def test_merges_what_counts(self):
    # On one device.
    merge = self.variant(jax.vmap(lib.merge, axis_name=base.AXIS))
    x = np.array([[[1.0, 5.0, np.nan]]], np.float32)
    counts = np.array([[[True, True, False]]])
    num, mean, var = merge(_replicate(1, lib.initial()), x, counts)
    np.testing.assert_allclose([num, mean, var], [[2.0], [3.0], [4.0]])


def test_normalizes_floating_leaves_only_and_clips():
  spec = {
    'image': types.ArraySpec((2, 2, 1), np.dtype('uint8')),
    'speed': types.ArraySpec((2,), np.dtype('float64')),
  }
  statistics = lib.initial_observations(spec)
  assert statistics[0] == () and statistics[1].mean.shape == (2,)
  statistics = (
    (),
    lib.Statistics(jnp.float32(9), jnp.array([1.0, 2.0]), jnp.array([4.0, 0])),
  )
  image = np.full((3, 1, 2, 2, 1), 7, np.uint8)
  speed = np.array([[[5.0, 2.0]], [[-99.0, 2.1]], [[1.0, 1.9]]], np.float32)
  actual = lib.normalize_observation(
    statistics, {'image': image, 'speed': speed}, 5.0
  )
  np.testing.assert_array_equal(actual['image'], image)
  # The second number has never varied.
  expected = [[[2.0, 0.0]], [[-5.0, 5.0]], [[0.0, -5.0]]]
  np.testing.assert_allclose(actual['speed'], expected, atol=1e-6)


def test_counts_each_observation_once_and_those_of_new_episodes():
  rng = np.random.default_rng(1)
  steps = sequences.random_steps(rng, 12, 4)
  halves = [jax.tree.map(lambda x, s=s: x[s : s + 7], steps) for s in (0, 6)]
  old = lib.initial_observations(types.ArraySpec((2,), np.dtype('float32')))
  merge = jax.vmap(lib.merge_observations, axis_name=base.AXIS)
  old = _replicate(1, old)
  for half in halves:
    old = merge(old, _replicate(1, half))
  ((num, mean, _),) = old
  assert num == 12 * 4
  every = np.float64(steps.observation[1:])
  np.testing.assert_allclose(mean[0], every.mean((0, 1)), rtol=1e-4)


def test_returns_so_far_are_those_of_each_episode():
  steps = sequences.random_steps(np.random.default_rng(2), 12, 4)
  running, every = np.zeros(4), []
  for t in range(13):
    first = steps.step_type[t] == types.StepType.FIRST
    running = np.where(first, 0.0, 0.9 * running + steps.reward[t])
    if t:
      every += list(running[~first])
  # An unroll starts with the last step of the one before.
  merge = jax.vmap(
    functools.partial(lib.merge_returns, discount=0.9), axis_name=base.AXIS
  )
  previous, old = jnp.zeros(4), _replicate(1, lib.initial())
  for start in (0, 6):
    half = jax.tree.map(lambda x, s=start: x[s : s + 7], steps)
    old = merge(old, _replicate(1, half), previous[None])
    for t in range(start, start + 6):
      first = steps.step_type[t] == types.StepType.FIRST
      previous = lib.next_return(previous, steps.reward[t], first, 0.9)
  assert old.num == len(every)
  np.testing.assert_allclose(old.mean[0], np.mean(every), rtol=1e-4)
  np.testing.assert_allclose(lib.deviation(old)[0], np.std(every), rtol=1e-4)
