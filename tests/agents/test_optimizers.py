"""Tests optimisers against their formulas in NumPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import apex_atari
from configs import base as base_config
from seedrl_jax.agents import optimizers

_STEPS = 5


def _config(**changes):
  config = base_config.get_config()
  config.optimizer.clip_norm = 0.0
  config.update_from_flattened_dict(changes)
  return config


def _gradients():
  return np.random.default_rng(0).normal(size=(_STEPS, 3)).astype(np.float32)


def _updates(config, gradients):
  """Returns the optimiser's updates for some gradients."""
  optimizer = optimizers.make_optimizer(config)
  params = np.zeros_like(gradients[0])
  state, result = optimizer.init(params), []
  step = jax.jit(optimizer.update)
  for g in gradients:
    update, state = step(g, state, params)
    result.append(update)
  return np.stack(result)


@pytest.mark.parametrize('inside', [False, True])
@pytest.mark.parametrize('b1', [0.0, 0.9])
def test_adam(inside, b1):
  b2, epsilon = 0.99, 1e-2
  config = _config(**{
    'optimizer.adam_b1': b1,
    'optimizer.adam_b2': b2,
    'optimizer.epsilon': epsilon,
    'optimizer.epsilon_inside_root': inside,
  })
  gradients = _gradients()
  m, v, expected = 0.0, 0.0, []
  for t, g in enumerate(gradients, start=1):
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    root = np.sqrt(v_hat + epsilon) if inside else np.sqrt(v_hat) + epsilon
    expected.append(-m_hat / root)
  np.testing.assert_allclose(
    _updates(config, gradients), expected, rtol=1e-5, atol=1e-7
  )


@pytest.mark.parametrize('inside', [False, True])
@pytest.mark.parametrize('initial_scale', [0.0, 1.0])
@pytest.mark.parametrize('momentum', [0.0, 0.7])
@pytest.mark.parametrize('centered', [False, True])
def test_rmsprop(inside, initial_scale, momentum, centered):
  decay, epsilon = 0.9, 1e-1
  config = _config(**{
    'optimizer.name': 'rmsprop',
    'optimizer.rmsprop_decay': decay,
    'optimizer.rmsprop_momentum': momentum,
    'optimizer.rmsprop_centered': centered,
    'optimizer.rmsprop_initial_scale': initial_scale,
    'optimizer.epsilon': epsilon,
    'optimizer.epsilon_inside_root': inside,
  })
  gradients = _gradients()
  square, mean, velocity, expected = initial_scale, 0.0, 0.0, []
  for g in gradients:
    square = decay * square + (1 - decay) * g**2
    mean = decay * mean + (1 - decay) * g if centered else 0.0
    v = square - np.square(mean)
    root = np.sqrt(v + epsilon) if inside else np.sqrt(v) + epsilon
    velocity = momentum * velocity + g / root
    expected.append(-velocity)
  np.testing.assert_allclose(
    _updates(config, gradients), expected, rtol=1e-5, atol=1e-7
  )


@pytest.mark.parametrize('size', [1e-2, 1.0, 30.0])
@pytest.mark.parametrize('inside', [False, True])
def test_centered_rmsprop_survives_a_gradient_that_hardly_varies(size, inside):
  config = apex_atari.get_config()
  config.optimizer.epsilon_inside_root = inside
  config.optimizer.clip_norm = 0.0
  gradient = np.random.default_rng(0).normal(size=200) * size
  optimizer = optimizers.make_optimizer(config)

  def step(state, unused):
    updates, state = optimizer.update(jnp.float32(gradient), state)
    return state, updates

  _, updates = jax.lax.scan(step, optimizer.init(jnp.zeros(200)), length=400)
  # Rounding makes the mean square less the squared mean negative.
  assert np.isfinite(updates).all()


def test_apex_adds_epsilon_as_published():
  optimizer = apex_atari.get_config().optimizer
  assert optimizer.rmsprop_centered
  assert optimizer.epsilon_inside_root


@pytest.mark.parametrize(
  ('schedule', 'expected'),
  [('linear', [1.0, 0.6, 0.2, 0.2]), ('constant', [1.0] * 4)],
)
def test_learning_rate_follows_the_progress(schedule, expected):
  config = _config(**{
    'optimizer.schedule': schedule,
    'optimizer.learning_rate': 1.0,
    'optimizer.final_learning_rate': 0.2,
    # The number of updates is not known.
    'replay.samples_per_insert': 0.0,
  })
  rate = optimizers.learning_rate(config)
  # Environments overshoot by a few frames.
  found = [float(rate(jnp.float32(x))) for x in (0.0, 0.5, 1.0, 1.1)]
  assert found == pytest.approx(expected)


def test_gradients_are_clipped_by_their_norm_over_all_parameters():
  # If epsilon is far above the gradients, RMSProp without averaging divides by
  # it: a millionth of the clipped gradient remains.
  config = _config(**{
    'optimizer.name': 'rmsprop',
    'optimizer.epsilon': 1e6,
    'optimizer.clip_norm': 2.5,
  })
  optimizer = optimizers.make_optimizer(config)
  gradients = {'a': jnp.array([3.0]), 'b': jnp.array([[4.0]])}
  update = jax.jit(optimizer.update)
  updates, state = update(gradients, optimizer.init(gradients))
  assert updates['a'].item() == pytest.approx(-1.5e-6, rel=1e-4)
  assert updates['b'].item() == pytest.approx(-2e-6, rel=1e-4)
  small = {'a': jnp.array([0.3]), 'b': jnp.array([[0.4]])}
  updates, _ = update(small, state)
  assert updates['b'].item() == pytest.approx(-4e-7, rel=1e-4)


def test_state_does_not_depend_on_schedule_and_clip():
  # A resumed run may change them.
  states = []
  for schedule, clip in (('linear', 40.0), ('constant', 0.0)):
    config = _config(**{
      'optimizer.schedule': schedule,
      'optimizer.clip_norm': clip,
    })
    states.append(optimizers.make_optimizer(config).init(jnp.zeros(3)))
  names = [
    [jax.tree_util.keystr(path) for path, _ in flat]
    for flat in map(jax.tree.leaves_with_path, states)
  ]
  assert names[0] == names[1]
  chex.assert_trees_all_equal_shapes(*map(jax.tree.leaves, states))
