"""Tests the update: over devices, in pieces, and on bad values."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.agents import base, sgd
from seedrl_jax.configs import base as base_config
from seedrl_jax.learner import fingerprints, update
from tests.agents import sequences
from tests.learner import toys

_LEARNING_RATE = toys.LEARNING_RATE


@pytest.mark.parametrize('factor', [1, 10, 1000])
def test_the_largest_numbers_of_actors_stay_within_float32(factor):
  """Uses the largest sums of any configuration."""
  config = base_config.get_config()
  config.loss.update(reduction='sum', discount=0.999)
  config.optimizer.clip_norm = 0.0
  length, batch, largest = 80, 64, factor * wire.LARGEST
  config.unroll_length, config.batch_size = length, batch
  spec = types.ArraySpec((8,), np.dtype('float32'))
  agent = base.load_agent(
    config,
    types.EnvSpec(
      types.StreamSpec(spec, types.discrete(3), 1, 'toy'), batch, 0
    ),
  )
  steps = sequences.random_steps(np.random.default_rng(0), length, batch)
  steps = steps._replace(
    observation=np.full((length + 1, batch, 8), largest, np.float32),
    reward=np.full((length + 1, batch), largest, np.float32),
    step_type=np.full_like(steps.step_type, types.StepType.MID),
    discount=np.ones_like(steps.discount),
  )
  updater, state = _updater(agent)
  data = updater.shard([sequences.batch_of(steps, agent.initial_core(batch))])
  for _ in range(3):
    state, output, *_ = updater(state, data, 0.0)
  # The bound has a margin of ten, and no more.
  assert output.finite.item() is (factor < 1000)


def _updater(agent=None, num_devices=1):
  agent = agent or toys.make_agent()
  updater = update.Updater(agent, jax.devices()[:num_devices])
  state = update.initial_state(agent, jax.random.PRNGKey(0))
  return updater, updater.replicate(state)


def _w(params):
  values = np.unique(np.asarray(params['w']))
  assert values.size == 1, values
  return values.item()


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_update_that_is_not_finite_changes_nothing(bad):
  agent = toys.make_agent(target_update_period=1)
  updater, state = _updater(agent, num_devices=2)
  good = updater.shard([toys.batch_of([1.0]), toys.batch_of([2.0])])
  state, *_ = updater(state, good, 1.0)
  before = update.host_state(state)
  # One device's loss suffices.
  shards = updater.shard([toys.batch_of([1.0]), toys.batch_of([bad])])
  state, output, params, _ = updater(state, shards, 1.0)
  chex.assert_trees_all_equal(update.host_state(state), before)
  chex.assert_trees_all_equal(params, before.agent.params)
  assert not output.finite
  state, output, *_ = updater(state, good, 1.0)
  assert output.finite
  assert int(update.host_state(state).step) == 2


def test_host_states_outlive_the_updates():
  updater, _ = _updater(num_devices=2)
  state = update.initial_state(updater.agent, jax.random.PRNGKey(0))
  running = updater.replicate(state)
  chex.assert_tree_shape_prefix(running, (2,))
  assert running.agent.params['w'].devices() == set(updater.devices)
  kept = None
  for _ in range(3):
    shards = updater.shard([toys.batch_of([1.0])] * 2)
    running, *_ = updater(running, shards, 1.0)
    kept = kept or update.host_state(running)
  jax.block_until_ready(running)
  assert _w(state.agent.params) == 0.0
  assert _w(kept.agent.params) == _LEARNING_RATE


@pytest.mark.parametrize(
  ('num_devices', 'micro_batches'), [(1, 1), (2, 1), (1, 3), (2, 3)]
)
def test_weights_and_priorities_of_a_batch(num_devices, micro_batches):
  agent = toys.make_agent(micro_batches=micro_batches)
  updater, state = _updater(agent, num_devices)
  rewards = np.arange(6.0)
  weights = np.array([1.0, 2.0, 4.0, 8.0, 2.0, 1.0], np.float32)
  batch = toys.batch_of(rewards)._replace(weight=weights)
  shards = updater.shard(sequences.pieces_of(batch, num_devices))
  state, output, *_ = updater(state, shards, 1.0)
  # In the order of the batch.
  chex.assert_shape(output.priorities, (num_devices, 6 // num_devices))
  np.testing.assert_array_equal(
    np.asarray(output.priorities).reshape(-1), rewards
  )
  # Weights are divided by the largest of all devices.
  step = _LEARNING_RATE * np.mean(weights / 8 * rewards)
  np.testing.assert_allclose(update.host_state(state).agent.params['w'], step)


@pytest.mark.parametrize(
  ('num_devices', 'micro_batches'), [(1, 1), (2, 1), (1, 3), (2, 3)]
)
def test_gradient_is_the_mean_over_what_counts(num_devices, micro_batches):
  def loss(params, target_params, batch, key, progress):
    rewards = batch.unroll.steps.reward[0]
    value = -jnp.mean(rewards) * jnp.sum(params['w'])
    share = jnp.mean(rewards > 0, dtype=jnp.float32)
    return value, sgd.LossOutput({}, valid_share=share)

  agent = toys.make_agent(loss=loss, micro_batches=micro_batches)
  updater, state = _updater(agent, num_devices)
  batch = toys.batch_of([0.0, 0.0, 3.0, 0.0, 1.0, 2.0])
  shards = updater.shard(sequences.pieces_of(batch, num_devices))
  state, *_ = updater(state, shards, 1.0)
  w = update.host_state(state).agent.params['w']
  np.testing.assert_allclose(w, 2.0 * _LEARNING_RATE, rtol=1e-6)


def test_every_piece_of_every_update_has_its_own_key():
  def loss(params, target_params, batch, key, progress):
    noise = jax.random.uniform(key, batch.weight.shape)
    return jnp.sum(params['w']) * 0.0, sgd.LossOutput({}, noise)

  agent = toys.make_agent(loss=loss, micro_batches=2)
  updater, state = _updater(agent, num_devices=2)
  noises = []
  for _ in range(2):
    shards = updater.shard([toys.batch_of([0.0, 0.0])] * 2)
    state, output, *_ = updater(state, shards, 1.0)
    noises.append(np.asarray(output.priorities).ravel())
  assert np.unique(noises).size == 8


def _with_params(state, w):
  return state._replace(agent=state.agent._replace(params={'w': w}))


@pytest.mark.parametrize('num_devices', [1, 3])
def test_fingerprints_tell_states_apart(num_devices):
  updater, state = _updater(num_devices=num_devices)
  kept = update.host_state(state)
  seen = []
  for changed in (
    kept,
    kept._replace(step=np.int32(1)),
    *(_with_params(kept, w) for w in np.eye(toys.SIZE, dtype=np.float32)[5:7]),
    _with_params(kept, np.full(toys.SIZE, np.nan, np.float32)),
  ):
    prints = updater.fingerprints(updater.replicate(changed))
    assert len(prints) == num_devices
    assert all(fingerprints.are_alike(x, prints[0]) for x in prints)
    assert not any(fingerprints.are_alike(prints[0], x) for x in seen)
    seen.append(prints[0])


@pytest.mark.parametrize(
  ('error', 'alike'), [(1e-7, True), (1e-5, True), (1e-2, False)]
)
def test_fingerprints_of_states_that_were_rounded_otherwise_are_alike(
  error, alike
):
  updater, state = _updater()
  rng = np.random.default_rng(3)
  w = rng.normal(size=toys.SIZE).astype(np.float32)
  # As one host's arithmetic may differ from another's in every update.
  other = w * (1 + error * rng.choice([-1, 1], toys.SIZE)).astype(np.float32)
  assert (w != other).any()
  (first,), (second,) = (
    updater.fingerprints(
      updater.replicate(_with_params(update.host_state(state), x))
    )
    for x in (w, other)
  )
  assert fingerprints.are_alike(first, second) == alike


def test_a_device_that_differs_shows():
  updater, state = _updater(num_devices=3)
  step = updater._place([np.array(x, np.int32) for x in (0, 0, 1)])
  first, second, third = updater.fingerprints(state._replace(step=step))
  assert first == second != third


@pytest.mark.parametrize(
  'metrics', [{}, {'b': 1.5, 'a': True, 'c': jnp.int32(3)}]
)
def test_metrics_come_back_by_name(metrics):
  packed = jax.jit(update.Metrics.pack)(metrics)
  assert list(packed.fetch().items()) == sorted(metrics.items())


def test_a_metric_that_is_no_scalar_is_named():
  with pytest.raises(ValueError, match=r'metric td has the shape \(2,\)'):
    update.Metrics.pack({'loss': 1.0, 'td': jnp.zeros(2)})
