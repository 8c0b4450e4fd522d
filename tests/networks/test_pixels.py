"""Tests of normalised pixels."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.configs import ppo_atari, pqn_atari, r2d2_atari, vtrace_atari
from seedrl_jax.networks import pixels
from tests.agents import sequences

_SHAPE = (32, 32, 1)
_BATCH = 4


def test_moments_are_those_of_all_batches(monkeypatch):
  frames = np.random.default_rng(0).integers(
    0, 256, (3, 5, 2, 6, 1), np.uint8, endpoint=False
  )
  module = pixels.Statistics((6, 3), stack=3)
  params = {'deep': {'pixels_0': module.init(jax.random.key(0))['params']}}
  for batch in frames:
    moments = {'pixels_0': pixels.moments(jnp.asarray(batch))}
    params = pixels.absorb(params, moments)
  statistics = params['deep']['pixels_0']
  assert statistics['num'] == 3 * 5 * 2
  num, *early = module.apply({'params': statistics})
  # Too few to be used.
  assert num == 30
  assert [np.unique(x).tolist() for x in early] == [[0.0], [1.0]]
  monkeypatch.setattr(pixels, '_LEAST_OBSERVATIONS', 30)
  _, *actual = module.apply({'params': statistics})
  unit = frames.reshape((-1, 6, 1)) / 255.0
  for expected, values in zip(
    (unit.mean(axis=0), (unit**2).mean(axis=0)), actual, strict=True
  ):
    np.testing.assert_allclose(values, np.tile(expected, (1, 3)), rtol=1e-5)


def test_each_task_has_its_own_moments(monkeypatch):
  rng = np.random.default_rng(1)
  monkeypatch.setattr(pixels, '_LEAST_OBSERVATIONS', 1)
  shared = pixels.Statistics((3, 2), stack=2, num_tasks=3)
  single = pixels.Statistics((3, 2), stack=2)
  joined = shared.init(jax.random.key(0))['params']
  alone = [single.init(jax.random.key(0))['params'] for _ in range(3)]
  for absent in (None, 2, 0):
    frames = rng.integers(0, 256, (4, 6, 3, 1), np.uint8)
    task = rng.integers(0, 3, (4, 6), np.int32)
    task[task == absent] = 1
    # Means over two devices, which share the batch.
    halves = [
      pixels.moments(jnp.asarray(x), y, 3)
      for x, y in zip(np.split(frames, 2, 1), np.split(task, 2, 1), strict=True)
    ]
    moments = jax.tree.map(lambda x, y: (x + y) / 2, *halves)
    joined = pixels.absorb({'x': joined}, {'x': moments})['x']
    for i in {*task.flat}:
      moments = pixels.moments(jnp.asarray(frames[task == i][None]))
      alone[i] = pixels.absorb({'x': alone[i]}, {'x': moments})['x']
  rows = np.int32([2, 0, 1, 2])
  _, *actual = shared.apply({'params': joined}, rows)
  for values, expected in zip(
    actual,
    zip(*[single.apply({'params': alone[i]})[1:] for i in rows], strict=True),
    strict=True,
  ):
    np.testing.assert_allclose(values, np.stack(expected), rtol=1e-4)


def test_pixels_get_mean_zero_and_deviation_one_and_are_clipped():
  unit = jnp.array([0.5, 0.5, 0.2])
  deviation = jnp.array([0.1, 0.0, 0.0])
  statistics = pixels.Moments(
    jnp.float32(1.0), unit, jnp.square(unit) + jnp.square(deviation)
  )
  x = jnp.array([[153, 0, 51]], jnp.uint8)
  # The second is far off, with the least deviation.
  np.testing.assert_allclose(
    pixels.normalize(statistics, x), [[1.0, -5.0, 0.0]], atol=1e-4
  )


def _agent(module):
  config = module.get_config()
  config.network.normalize_pixels = True
  config.network.torso = 'tiny'
  config.unroll_length, config.batch_size = 6, _BATCH
  for key, value in (('minibatches', 2), ('epochs', 2)):
    if key in config:
      config[key] = value
  observation = types.ArraySpec(_SHAPE, np.dtype('uint8'))
  stream = types.StreamSpec(observation, types.discrete(3), 1, 'toy')
  return base.load_agent(config, types.EnvSpec(stream, _BATCH, 0)), config


def _find_statistics(params):
  """Returns the first `Statistics` in a nest of parameters."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(params)
  return {
    path[-1].key: x
    for path, x in leaves
    if any(getattr(key, 'key', '') == 'pixels_0' for key in path)
  }


def _batch(agent, state, length):
  """Returns a batch of random frames, acted on once."""
  steps = sequences.random_steps(np.random.default_rng(0), length, _BATCH)
  shape = (length + 1, _BATCH, *_SHAPE)
  frames = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
  steps = steps._replace(observation=frames)
  core = agent.initial_core(_BATCH)
  first = jax.tree.map(lambda x: x[0], types.agent_input(steps))
  env_id = jnp.arange(_BATCH)
  key = jax.random.key(0)
  output, _ = agent.act(agent.acting_params(state), key, first, core, env_id)
  output = jax.tree.map(lambda x: np.stack([x] * (length + 1)), output)
  return sequences.batch_of(steps._replace(agent_output=output), core)


@pytest.mark.parametrize(
  'module', [vtrace_atari, ppo_atari, pqn_atari, r2d2_atari]
)
def test_updates_count_the_pixels_of_their_batches(module):
  agent, config = _agent(module)
  length = config.unroll_length + agent.overlap - 1
  state = agent.init(jax.random.key(0))
  batch = _batch(agent, state, length)
  halves = [
    base.select_unrolls(batch, slice(i, i + 2)) for i in range(0, _BATCH, 2)
  ]
  update = jax.vmap(
    agent.update, in_axes=(None, 0, 0, None), out_axes=0, axis_name=base.AXIS
  )
  states, _ = jax.jit(update)(
    state,
    jax.tree.map(lambda *x: jnp.stack(x), *halves),
    jax.random.split(jax.random.key(1), 2),
    0.5,
  )
  statistics = _find_statistics(agent.acting_params(states))
  first, second = (
    {name: x[device] for name, x in statistics.items()} for device in (0, 1)
  )
  chex.assert_trees_all_equal(first, second)
  # PQN counts them in each epoch; each device has half of the unrolls.
  epochs = 2 if module is pqn_atari else 1
  assert first['num'] == epochs * (length + 1) * _BATCH / 2
  # Blocks of pixels have another order.
  means = batch.unroll.steps.observation.mean(axis=(0, 1)) / 255.0
  np.testing.assert_allclose(
    np.sort(first['mean'], None), np.sort(means, None), rtol=1e-4
  )
