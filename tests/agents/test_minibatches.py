"""Tests the order, metrics and checks of minibatches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base, minibatches
from seedrl_jax.configs import vtrace_atari
from seedrl_jax.networks import heads
from seedrl_jax.networks import network as network_lib

_SIZE, _EPOCHS, _PARTS = 12, 3, 4


def _step(state, rows):
  """Records its rows; not finite at the step that `bad` names."""
  seen, count, bad = state
  output = base.UpdateOutput({'count': jnp.float32(count)}, count != bad)
  return (seen.at[count].set(rows), count + 1, bad), output


def _run(seed=0, bad=-1, **changes):
  sizes = {'size': _SIZE, 'epochs': _EPOCHS, 'minibatches': _PARTS} | changes
  steps = sizes['epochs'] * sizes['minibatches']
  seen = jnp.zeros((steps, sizes['size'] // sizes['minibatches']), int)
  (seen, count, _), output = jax.jit(
    lambda key: minibatches.run(_step, (seen, 0, bad), key, **sizes)
  )(jax.random.key(seed))
  assert count == steps
  return np.asarray(seen), output


def test_each_epoch_has_every_sample_once_in_another_order():
  seen, output = _run()
  epochs = seen.reshape((_EPOCHS, _SIZE))
  for epoch in epochs:
    np.testing.assert_array_equal(np.sort(epoch), np.arange(_SIZE))
  assert len({tuple(epoch) for epoch in epochs}) == _EPOCHS
  # The mean over steps.
  assert output.metrics['count'] == (_EPOCHS * _PARTS - 1) / 2
  assert output.finite
  assert (_run(seed=1)[0] != seen).any()


def test_one_bad_step_is_enough():
  for bad in (0, 5, _EPOCHS * _PARTS - 1):
    assert not _run(bad=bad)[1].finite


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
    return minibatches.run(
      step, params, jax.random.key(0), size=4, epochs=1, minibatches=2
    )

  core = network.initial_core(1)
  assert 'stablehlo.convolution' in jax.jit(loss).lower(params).as_text()
  assert 'stablehlo.convolution' not in jax.jit(run).lower(params).as_text()
