"""Tests optimisers against their formulas, and learning rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.agents import optimizers
from seedrl_jax.configs import apex_atari
from seedrl_jax.configs import base as base_config


def _config(**changes):
  config = base_config.get_config()
  config.optimizer.clip_norm = 0.0
  config.optimizer.update(changes)
  return config


def _check_updates(config, expected_update):
  """Compares updates with those of a formula, which gets each gradient."""
  optimizer = optimizers.make(config)
  gradients = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
  state, step = optimizer.init(gradients[0]), jax.jit(optimizer.update)
  for t, g in enumerate(gradients, start=1):
    update, state = step(g, state)
    np.testing.assert_allclose(
      update, expected_update(t, g), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize('inside', [False, True])
def test_adam(inside):
  b1, b2, epsilon = 0.9, 0.99, 1e-2
  m = v = 0.0

  def expected(t, g):
    nonlocal m, v
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    root = np.sqrt(v_hat + epsilon) if inside else np.sqrt(v_hat) + epsilon
    return -m_hat / root

  config = _config(
    adam_b1=b1, adam_b2=b2, epsilon=epsilon, epsilon_inside_root=inside
  )
  _check_updates(config, expected)


def test_radam():
  # Liu et al. 2020 (arXiv 1908.03265), algorithm 2.
  b1, b2, epsilon = 0.8, 0.9, 1e-2
  longest = 2 / (1 - b2) - 1
  m = v = 0.0
  rectified = []

  def expected(t, g):
    nonlocal m, v
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1**t), v / (1 - b2**t)
    length = longest - 2 * t * b2**t / (1 - b2**t)
    rectified.append(length >= 5)
    if not rectified[-1]:
      return -m_hat
    share = (length - 4) * (length - 2) * longest
    share /= (longest - 4) * (longest - 2) * length
    return -np.sqrt(share) * m_hat / (np.sqrt(v_hat) + epsilon)

  config = _config(name='radam', adam_b1=b1, adam_b2=b2, epsilon=epsilon)
  _check_updates(config, expected)
  assert rectified[0] < rectified[-1]


@pytest.mark.parametrize('momentum', [0.0, 0.7])
@pytest.mark.parametrize(
  ('centered', 'inside', 'initial'),
  [
    (False, False, 1.0),
    (False, True, 0.0),
    (True, False, 0.0),
    (True, True, 1),
  ],
)
def test_rmsprop(centered, inside, initial, momentum):
  decay, epsilon = 0.9, 1e-1
  square, mean, velocity = float(initial), 0.0, 0.0

  def expected(_, g):
    nonlocal square, mean, velocity
    square = decay * square + (1 - decay) * g**2
    mean = decay * mean + (1 - decay) * g if centered else 0.0
    v = square - np.square(mean)
    root = np.sqrt(v + epsilon) if inside else np.sqrt(v) + epsilon
    velocity = momentum * velocity + g / root
    return -velocity

  config = _config(
    name='rmsprop',
    rmsprop_decay=decay,
    rmsprop_momentum=momentum,
    rmsprop_centered=centered,
    rmsprop_initial_scale=float(initial),
    epsilon=epsilon,
    epsilon_inside_root=inside,
  )
  _check_updates(config, expected)


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    (
      {'name': 'adagrad', 'epsilon': 0.1},
      lambda past: -past[-1] / np.sqrt(np.sum(np.square(past), 0) + 0.1),
    ),
    (
      {'name': 'sgd', 'sgd_momentum': 0.5},
      lambda past: -sum(0.5**i * g for i, g in enumerate(past[::-1])),
    ),
    ({'name': 'sgd'}, lambda past: -past[-1]),
  ],
)
def test_adagrad_and_sgd(settings, expected):
  past = []

  def step(_, g):
    past.append(np.asarray(g, np.float64))
    return expected(past)

  _check_updates(_config(**settings), step)


@pytest.mark.parametrize('inside', [False, True])
def test_centered_rmsprop_survives_a_gradient_that_hardly_varies(inside):
  config = apex_atari.get_config()
  config.optimizer.epsilon_inside_root = inside
  config.optimizer.clip_norm = 0.0
  gradient = np.random.default_rng(0).normal(size=200) * 30.0
  optimizer = optimizers.make(config)

  def step(state, unused):
    updates, state = optimizer.update(jnp.float32(gradient), state)
    return state, updates

  _, updates = jax.lax.scan(step, optimizer.init(jnp.zeros(200)), length=400)
  # Rounding makes the mean square less the squared mean negative.
  assert np.isfinite(updates).all()


@pytest.mark.parametrize(
  ('schedule', 'warmup_frames', 'expected'),
  [
    ('linear', 0, [1.0, 0.6, 0.2, 0.2]),
    ('linear', 1000, [0.0, 0.3, 0.2, 0.2]),
    ('constant', 0, [1.0] * 4),
    ('constant', 1000, [0.0, 0.5, 1.0, 1.0]),
  ],
)
@pytest.mark.parametrize(
  ('total', 'decay_frames'), [(1000, None), (1000, 1000), (4000, 1000)]
)
def test_learning_rate_follows_the_frames(
  schedule, warmup_frames, expected, total, decay_frames
):
  config = _config(
    schedule=schedule,
    learning_rate=1.0,
    final_learning_rate=0.2,
    decay_frames=decay_frames,
    warmup_frames=warmup_frames,
  )
  config.total_env_frames = total
  rate = optimizers.learning_rate(config)
  # Environments overshoot by a few frames.
  actual = [float(rate(jnp.float32(x / total))) for x in (0, 500, 1000, 1100)]
  assert actual == pytest.approx(expected)


def test_gradients_are_clipped_by_their_norm_over_all_parameters():
  # If epsilon is far above the gradients, RMSProp without averaging divides by
  # it: a millionth of the clipped gradient remains.
  config = _config(name='rmsprop', epsilon=1e6, clip_norm=2.5)
  optimizer = optimizers.make(config)
  gradients = {'a': jnp.array([3.0]), 'b': jnp.array([[4.0]])}
  update, state = jax.jit(optimizer.update), optimizer.init(gradients)
  for factor, clipped in ((1.0, 0.5), (0.1, 0.1)):
    scaled = jax.tree.map(lambda x, f=factor: f * x, gradients)
    updates, state = update(scaled, state)
    assert updates['a'].item() == pytest.approx(-3e-6 * clipped, rel=1e-4)
    assert updates['b'].item() == pytest.approx(-4e-6 * clipped, rel=1e-4)


def test_state_does_not_depend_on_schedule_and_clip():
  # A resumed run may change them.
  states = [
    optimizers.make(_config(schedule=s, clip_norm=c)).init(jnp.zeros(3))
    for s, c in (('linear', 40.0), ('constant', 0.0))
  ]
  names = [
    [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(s)]
    for s in states
  ]
  assert names[0] == names[1]
