"""Tests for seedrl_jax/networks/popart.py."""

import chex
import jax
import numpy as np
import pytest
from absl.testing import parameterized

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import ppo_cartpole
from seedrl_jax.networks import heads, popart

_FEATURES = 6


class _Reference:
  """The statistics in float64: the first batches count alike."""

  def __init__(self):
    self.count, self.mean, self.variance = 0, 0.0, 1.0

  def absorb(self, returns):
    self.count += 1
    rate = max(3e-4, 1.0 / self.count)
    mean = (1 - rate) * self.mean + rate * returns.mean()
    square = (1 - rate) * (self.variance + self.mean**2)
    square += rate * (returns**2).mean()
    self.mean, self.variance = mean, square - mean**2


class VariantsTest(parameterized.TestCase):
  @chex.all_variants()
  @parameterized.parameters((1e3, -4e4), (1e-3, 2e-3), (1.0, 0.0))
  def test_values_stay_while_statistics_follow_the_returns(self, scale, mean):
    rng, reference = np.random.default_rng(0), _Reference()
    head = heads.BaselineHead(popart=True)
    features = rng.normal(size=(20, _FEATURES)).astype(np.float32)
    params = {'baseline': head.init(jax.random.key(0), features)['params']}
    assert not np.any(head.apply({'params': params['baseline']}, features))

    def update(params, returns, weight):
      batch = popart.batch_moments(popart.moments(params), returns, weight)
      return popart.absorb(params, batch)

    update = self.variant(update)
    for size in (30, 10, 50):
      # As an optimiser's step changes them.
      linear = params['baseline']['Dense_0']
      linear['kernel'] = rng.normal(size=(_FEATURES, 1)).astype(np.float32)
      before = head.apply({'params': params['baseline']}, features)
      returns = (mean + scale * rng.normal(size=size)).astype(np.float32)
      weight = np.ones(size, np.float32)
      # Invalid ones count nothing.
      weight[::2], weight[1::2] = 0.0, 2.0
      params = update(params, returns, weight)
      reference.absorb(returns[1::2].astype(np.float64))
      after = head.apply({'params': params['baseline']}, features)
      actual = popart.moments(params)
      if reference.count == 1:
        # Only the scale of the head's outputs changes.
        before = actual.deviation * before + actual.mean
      near = 1e-5 * max(scale, abs(mean))
      np.testing.assert_allclose(after, before, rtol=1e-4, atol=near)
      np.testing.assert_allclose(actual.mean, reference.mean, rtol=1e-4)
      np.testing.assert_allclose(
        actual.deviation, reference.variance**0.5, rtol=1e-3
      )


def test_each_task_has_its_own_statistics():
  rng = np.random.default_rng(2)
  head = heads.BaselineHead(popart=True, num_tasks=3)
  features = rng.normal(size=(12, _FEATURES)).astype(np.float32)
  tasks = np.arange(12, dtype=np.int32) % 3
  params = {'baseline': head.init(jax.random.key(0), features, tasks)['params']}
  references = [_Reference() for _ in range(3)]
  for present in ((0, 2), (0,), (2, 0)):
    linear = params['baseline']['Dense_0']
    linear['kernel'] = rng.normal(size=(_FEATURES, 3)).astype(np.float32)
    before = head.apply({'params': params['baseline']}, features, tasks)
    task = np.repeat(np.int32(present), 10)
    returns = (100.0**task * rng.normal(size=len(task))).astype(np.float32)
    old = popart.moments(params, task)
    batch = popart.batch_moments(old, returns, np.ones(len(task), np.float32))
    params = popart.absorb(params, batch)
    after = head.apply({'params': params['baseline']}, features, tasks)
    for i, reference in enumerate(references):
      if i in present:
        reference.absorb(returns[task == i].astype(np.float64))
      # The first batch of a task changes the scale of its outputs.
      if i not in present or reference.count > 1:
        rows = tasks == i
        np.testing.assert_allclose(after[rows], before[rows], rtol=1e-3)
      actual = popart.moments(params, np.int32([i]))
      np.testing.assert_allclose(actual.mean, reference.mean, rtol=1e-4)
      np.testing.assert_allclose(actual.variance, reference.variance, rtol=1e-3)


def test_pieces_of_a_batch_make_its_moments():
  returns = np.random.default_rng(1).normal(5.0, 2.0, 12).astype(np.float32)
  weight = np.float32(np.arange(12) % 3 > 0) * 1.5
  old = popart.Moments(np.float32(3.0), np.float32(4.0), np.ones(1))
  whole = popart.batch_moments(old, returns, weight)
  pieces = [
    popart.batch_moments(old, *x)
    for x in zip(np.split(returns, 3), np.split(weight, 3), strict=True)
  ]
  mean = jax.tree.map(lambda *x: sum(x) / len(x), *pieces)
  chex.assert_trees_all_close(mean, whole, rtol=1e-5)


def test_statistics_have_no_gradient():
  head = heads.BaselineHead(popart=True)
  features = np.ones((3, _FEATURES), np.float32)
  params = {'baseline': head.init(jax.random.key(0), features)['params']}

  def loss(params):
    value = head.apply({'params': params['baseline']}, features)
    moments = popart.moments(params)
    return ((value - 7.0 - moments.mean) / moments.deviation).sum()

  gradient = jax.grad(loss)(params)['baseline']
  assert not any(jax.tree.leaves(gradient['popart']))
  assert gradient['Dense_0']['bias'] == 3.0


@pytest.mark.parametrize(
  ('make', 'values', 'message'),
  [
    (base_config, {'loss.reward_clip': 1.0}, 'loss.reward_clip=1.0'),
    (base_config, {'env.reward_clip': True}, 'env.reward_clip=True'),
    (
      ppo_cartpole,
      {'normalization.rewards': True},
      'normalization.rewards=True changes the scale of rewards, which PopArt '
      'learns; give False',
    ),
  ],
)
def test_other_scales_are_rejected(make, values, message):
  config = make.get_config()
  config.update_from_flattened_dict({**values, 'network.popart': True})
  stream = types.StreamSpec(
    types.ArraySpec((2,), np.dtype(np.float32)), types.discrete(2), 1, 'toy'
  )
  with pytest.raises(ValueError, match=f'network.popart=True: .*{message}'):
    agents.load_agent(config, types.EnvSpec(stream, 2, 0))
