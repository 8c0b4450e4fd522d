"""Tests updates by a loss, and minibatches."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base, sgd
from seedrl_jax.configs import vtrace_atari
from seedrl_jax.learner import update as update_lib
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib
from tests.learner import toys

_SIZE, _EPOCHS, _PARTS = 12, 3, 4


@functools.cache
def _updater(agent):
  return update_lib.Updater(agent, jax.devices()[:1])


def _run(agent, state, batch, progress):
  """Runs an update on a single training device."""
  updater, key = _updater(agent), jax.random.PRNGKey(0)
  state = updater.replicate(update_lib.LearnerState(state, np.int32(0), key))
  result = updater(state, updater.shard([batch]), progress)
  _, finite, priorities = jax.tree.map(np.squeeze, result.output)
  metrics = result.output.metrics.fetch()
  output = base.UpdateOutput(metrics, finite, priorities)
  return updater.host_state(result.state).agent, output


def _update(agent, rewards, progress=1.0, state=None):
  state = state or agent.init(jax.random.key(0))
  return _run(agent, state, toys.batch_of(rewards), progress)


def _w(params):
  values = np.unique(np.asarray(params['w']))
  assert values.size == 1, values
  return values.item()


@pytest.mark.parametrize('micro_batches', [1, 2])
def test_update_follows_the_gradient(micro_batches):
  agent = toys.make_agent(micro_batches=micro_batches)
  state, output = _update(agent, [1.0, 3.0], progress=0.5)
  assert _w(state.params) == 0.5 * 2 * toys.LEARNING_RATE
  assert int(state.step) == 1 and output.finite
  norm = output.metrics['gradient_norm']
  assert norm == 2 * np.sqrt(toys.SIZE)
  assert output.metrics['learning_rate'] == 0.5
  assert output.metrics['update_norm'] == 0.5 * toys.LEARNING_RATE * norm
  assert output.metrics['total'] == 0.5 * (1 + 9) / 2 * toys.SIZE
  np.testing.assert_array_equal(output.priorities, [1.0, 3.0])


def test_clipped_share_and_update_ratio():
  agent = toys.make_agent(clip_norm=toys.SIZE)
  state, output = _update(agent, [2.0])
  assert not output.metrics['health/clipped_share']
  _, output = _run(agent, state, toys.batch_of([200.0]), 1.0)
  assert output.metrics['health/clipped_share'] == 1.0
  change = output.metrics['update_norm']
  share = change / np.linalg.norm(state.params['w'])
  assert output.metrics['health/update_ratio'] == pytest.approx(share)


def test_new_parameters_are_those_that_the_agent_allows():
  agent = toys.make_agent(project=lambda p: {'w': jnp.minimum(p['w'], 0.125)})
  assert _w(_update(agent, [1.0, 3.0])[0].params) == 0.125


def _infinite_slope(params, target_params, batch, key, progress):
  # At 0 the root is finite, its slope is not.
  return jnp.sum(jnp.sqrt(params['w'])), sgd.LossOutput({})


def test_the_loss_of_a_whole_share_is_traced_once():
  traced = []

  def loss(*args):
    traced.append(args)
    return _infinite_slope(*args)

  _update(toys.make_agent(loss=loss), [1.0])
  assert len(traced) == 1


@pytest.mark.parametrize(
  ('changes', 'bad'),
  [
    ({'loss': _infinite_slope}, 'gradient_norm'),
    # The optimiser's update for a finite gradient.
    (
      {
        'optimizer': optax.stateless(
          lambda updates, _: jax.tree.map(lambda x: x * jnp.nan, updates)
        )
      },
      'update_norm',
    ),
  ],
)
def test_gradients_and_steps_must_be_finite_too(changes, bad):
  _, output = _update(toys.make_agent(**changes), [1.0])
  assert np.isfinite(output.metrics['total'])
  assert not np.isfinite(output.metrics[bad])
  assert not output.finite


def test_target_network_follows_every_period():
  agent = toys.make_agent(target_update_period=2)
  state, targets, params = None, [], []
  for _ in range(5):
    state, _ = _update(agent, [1.0], state=state)
    targets.append(_w(state.target_params))
    params.append(_w(state.params))
  assert targets == [0.0, params[1], params[1], params[3], params[3]]


def test_target_network_may_take_a_part():
  agent = toys.make_agent(target_update_period=1, target_update_rate=0.25)
  state, _ = _update(agent, [1.0])
  assert _w(state.target_params) == pytest.approx(0.25 * _w(state.params))


def test_micro_batches_must_divide_the_share():
  with pytest.raises(AssertionError, match='divisible'):
    _update(toys.make_agent(micro_batches=2), [0.0] * 3)


def test_only_micro_batches_are_calls_of_their_own():
  for count in (1, 2):
    update = toys.make_agent(micro_batches=count).update
    assert isinstance(update, base.UpdateInPieces) == (count > 1)


def _step(state, rows):
  """Records its rows; not finite at the step that `bad` names."""
  seen, count, bad = state
  output = base.UpdateOutput({'count': jnp.float32(count)}, count != bad)
  return (seen.at[count].set(rows), count + 1, bad), output


def _run_minibatches(seed=0, bad=-1, **changes):
  sizes = {'size': _SIZE, 'epochs': _EPOCHS, 'minibatches': _PARTS} | changes
  steps = sizes['epochs'] * sizes['minibatches']
  seen = jnp.zeros((steps, sizes['size'] // sizes['minibatches']), int)
  (seen, count, _), output = jax.jit(
    lambda key: sgd.run_minibatches(_step, (seen, 0, bad), key, **sizes)
  )(jax.random.key(seed))
  assert count == steps
  return np.asarray(seen), output


def test_each_epoch_has_every_sample_once_in_another_order():
  seen, output = _run_minibatches()
  epochs = seen.reshape((_EPOCHS, _SIZE))
  for epoch in epochs:
    np.testing.assert_array_equal(np.sort(epoch), np.arange(_SIZE))
  assert len({tuple(epoch) for epoch in epochs}) == _EPOCHS
  # The mean over steps.
  assert output.metrics['count'] == (_EPOCHS * _PARTS - 1) / 2
  assert output.finite
  assert (_run_minibatches(seed=1)[0] != seen).any()


def test_one_bad_step_is_enough():
  for bad in (0, 5, _EPOCHS * _PARTS - 1):
    assert not _run_minibatches(bad=bad)[1].finite


@pytest.mark.parametrize('torso', ['shallow', 'nature', 'grid'])
def test_no_convolution_is_in_the_loop(torso):
  """XLA's CPU backend would be many times slower."""
  config = vtrace_atari.get_config().network
  config.torso = torso
  config.frame_stack = 1
  observation = types.ArraySpec((84, 84, 1), np.dtype('uint8'))
  env_spec = types.EnvSpec(
    types.StreamSpec(observation, types.discrete(3), 4, 'toy'), 1, 0
  )
  network = network_lib.make_network(config, env_spec)
  module = heads.QNetwork(network, 0, False)
  init = network_lib.make_init(module, network, env_spec)
  params = jax.eval_shape(init, jax.random.key(0))
  inputs = network_lib.dummy_inputs(env_spec)

  def loss(params):
    q_values, _ = module.apply({'params': params}, inputs, core)
    return jnp.sum(q_values)

  def step(params, rows):
    del rows
    grads = jax.grad(loss)(params)
    return grads, base.UpdateOutput({}, jnp.bool_(True))

  def run(params):
    return sgd.run_minibatches(
      step, params, jax.random.key(0), size=4, epochs=1, minibatches=2
    )

  core = network.initial_core(1)
  assert 'stablehlo.convolution' in jax.jit(loss).lower(params).as_text()
  assert 'stablehlo.convolution' not in jax.jit(run).lower(params).as_text()
