"""Tests that acting step by step equals the unroll, with resets."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base
from seedrl_jax.networks import network, torsos
from tests.networks import parameters

_LENGTH, _BATCH, _ACTIONS = 6, 3, 4

_FLOATS = types.ArraySpec((4,), np.dtype('float32'))
_FRAME = types.ArraySpec((1, 40, 36), np.dtype('uint8'))
_OBSERVATIONS = {
  'vector': _FLOATS,
  'matrix': types.ArraySpec((5, 2), np.dtype('float64')),
  'frame': _FRAME,
  'cell': types.ArraySpec((), np.dtype('int32')),
  'minigrid': {
    'direction': types.ArraySpec((), np.dtype('int32')),
    'image': types.ArraySpec((7, 7, 3), np.dtype('uint8')),
  },
}


def _env_spec(observation):
  return types.EnvSpec(
    types.StreamSpec(observation, types.discrete(_ACTIONS), 1, 'toy'), 8, 2
  )


def _config(**changes):
  config = base.get_config().network
  config.hidden_sizes, config.dense_size = (8,), 8
  config.resnet_channels = (2, 3)
  config.update(changes)
  return config


def _inputs(observation, seed=0):
  rng = np.random.default_rng(seed)

  def leaf(spec):
    shape = (_LENGTH, _BATCH, *spec.shape)
    if spec.dtype.kind == 'f':
      return rng.normal(size=shape).astype(np.float32)
    return rng.integers(0, 9, shape, spec.dtype)

  # Environment 0 has no reset, 1 has one, 2 several.
  first = np.zeros((_LENGTH, _BATCH), bool)
  first[3, 1] = first[0, 2] = first[4, 2] = first[5, 2] = True
  shape = (_LENGTH, _BATCH)
  return types.AgentInput(
    observation=jax.tree.map(leaf, observation, is_leaf=types.is_spec),
    reward=(rng.normal(size=shape) * 2 * ~first).astype(np.float32),
    previous_action=rng.integers(0, _ACTIONS, shape, np.int32) * ~first,
    first=first,
  )


def _make(config, observation, warm=True):
  """Returns the network, variables, inputs and a used core state."""
  env_spec = _env_spec(observation)
  net = network.make_network(config, env_spec)
  core = net.initial_core(_BATCH)
  inputs = _inputs(observation)
  variables = parameters.draw(net.init, jax.random.key(0), inputs, core)
  if warm:
    _, core = _apply(net, variables, _inputs(observation, seed=1), core)
  return net, variables, inputs, core


@functools.partial(jax.jit, static_argnums=0)
def _apply(net, variables, inputs, core):
  return net.apply(variables, inputs, core)


@pytest.mark.parametrize('observation', sorted(_OBSERVATIONS))
@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'lstm_size': 5, 'use_previous_action': True, 'frame_stack': 4},
  ],
  ids=['feedforward', 'recurrent'],
)
def test_steps_equal_unroll(observation, changes):
  _check_steps_equal_unroll(_config(**changes), _OBSERVATIONS[observation])


@pytest.mark.parametrize('torso', ['mlp', 'tiny', 'nature', 'resnet'])
def test_steps_equal_unroll_for_each_torso(torso):
  config = _config(torso=torso, frame_stack=3, lstm_size=4)
  _check_steps_equal_unroll(config, _FRAME)


def _check_steps_equal_unroll(config, observation):
  net, variables, inputs, core = _make(config, observation)
  features, final = _apply(net, variables, inputs, core)
  chex.assert_tree_shape_prefix(features, (_LENGTH, _BATCH))
  chex.assert_tree_shape_prefix(core, (_BATCH,))
  stepwise = []
  for t in range(_LENGTH):
    step = jax.tree.map(lambda x, t=t: x[t : t + 1], inputs)
    y, core = _apply(net, variables, step, core)
    stepwise.append(y[0])
  np.testing.assert_allclose(np.stack(stepwise), features, atol=1e-5)
  chex.assert_trees_all_close(core, final, atol=1e-5)


@pytest.mark.parametrize('chunk', [5, 6])
def test_images_in_chunks_give_the_same_features_and_gradient(chunk):
  whole = _make(_config(torso='resnet', frame_stack=2), _FRAME)
  chunked = _make(
    _config(torso='resnet', frame_stack=2, tpu_chunk=chunk), _FRAME
  )
  chex.assert_trees_all_equal_shapes(whole[1], chunked[1])

  def loss(net, variables):
    features, _ = net.apply(variables, *whole[2:])
    return jnp.sum(jnp.square(features)), features

  actual = [
    jax.jit(jax.grad(functools.partial(loss, net), has_aux=True))(whole[1])
    for net in (whole[0], chunked[0])
  ]
  chex.assert_trees_all_close(*actual, rtol=1e-4, atol=1e-5)


def test_frames_in_blocks_equal_images_stacked_by_hand():
  net, variables, inputs, core = _make(
    _config(torso='shallow', frame_stack=3), _FRAME, warm=False
  )
  features, _ = _apply(net, variables, inputs, core)
  # Environment 0 has no reset: its stacks are full from step 2 on.
  frames = inputs.observation[:, 0, 0].astype(np.float32) / 255.0
  images = np.stack([frames[:-2], frames[1:-1], frames[2:]], axis=-1)
  torso = torsos.make_torso(net.config, images.shape[1:])
  params = {'params': variables['params']['torso_0']}
  chex.assert_trees_all_close(
    jax.jit(torso.apply)(params, images), features[2:, 0], atol=1e-5
  )


@pytest.mark.parametrize('observation', ['frame', 'minigrid'])
def test_core_is_zeroed_before_first(observation):
  config = _config(lstm_size=5, use_previous_action=True, frame_stack=4)
  net, variables, inputs, used = _make(config, _OBSERVATIONS[observation])
  fresh = net.initial_core(_BATCH)
  from_used, _ = _apply(net, variables, inputs, used)
  from_fresh, _ = _apply(net, variables, inputs, fresh)
  # Environment 2 starts with FIRST, environment 1 has one at step 3.
  np.testing.assert_allclose(from_used[:, 2], from_fresh[:, 2], atol=1e-6)
  np.testing.assert_allclose(from_used[3:, 1], from_fresh[3:, 1], atol=1e-6)
  assert np.abs(from_used[:3, 1] - from_fresh[:3, 1]).max() > 1e-4
  assert np.abs(from_used[:, 0] - from_fresh[:, 0]).max() > 1e-4


def test_initial_core_is_zeros_in_the_frames_dtype():
  config = _config(frame_stack=4, lstm_size=5)
  net = network.make_network(config, _env_spec(_OBSERVATIONS['minigrid']))
  core = net.initial_core(3)
  (frames,) = core.frames
  chex.assert_shape(frames, (3, 7, 7, 9))
  chex.assert_type(frames, jnp.uint8)
  chex.assert_shape(core.lstm, (3, 5))
  for x in jax.tree.leaves(core):
    np.testing.assert_array_equal(x, 0)


def test_bfloat16_computes_in_it_and_keeps_float32():
  config = _config(compute_dtype='bfloat16', lstm_size=5, frame_stack=2)
  config.use_previous_action = True
  net, variables, inputs, core = _make(config, _OBSERVATIONS['minigrid'])
  features, core = _apply(net, variables, inputs, core)
  assert features.dtype == jnp.bfloat16
  chex.assert_type(jax.tree.leaves(variables), jnp.float32)
  chex.assert_type(list(core.lstm), jnp.float32)


def test_layout_of_the_environment_makes_no_difference():
  last = types.ArraySpec((40, 36, 1), np.dtype('uint8'))
  config = _config(frame_stack=4)
  net, variables, inputs, core = _make(config, _FRAME)
  expected, expected_core = _apply(net, variables, inputs, core)
  other = network.make_network(config, _env_spec(last))
  moved = inputs._replace(observation=np.moveaxis(inputs.observation, 2, -1))
  features, new_core = _apply(other, variables, moved, core)
  np.testing.assert_array_equal(features, expected)
  chex.assert_trees_all_equal(new_core, expected_core)


def test_previous_action_and_reward_are_appended():
  config = _config(use_previous_action=True)
  net, variables, inputs, core = _make(config, _FLOATS)
  features, _ = _apply(net, variables, inputs, core)
  code, reward = features[..., 8 : 8 + _ACTIONS], features[..., -1]
  assert features.shape[-1] == 8 + _ACTIONS + 1
  expected = np.eye(_ACTIONS)[inputs.previous_action]
  expected[np.asarray(inputs.first)] = 0.0
  np.testing.assert_array_equal(code, expected)
  np.testing.assert_allclose(reward, np.clip(inputs.reward, -1, 1))


def test_previous_actions_of_other_kinds_are_appended():
  box = types.ActionSpec((2,), np.dtype(np.float32), (-1.0,) * 2, (1.0,) * 2)
  joint = types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (1, 2))
  codes = []
  for spec, action in ((box, [0.5, -1.0]), (joint, [1, 0])):
    stream = _env_spec(_FLOATS).stream._replace(action=spec)
    env_spec = types.EnvSpec(stream, 8, 2)
    net = network.make_network(_config(use_previous_action=True), env_spec)
    inputs = network.dummy_inputs(env_spec)
    assert inputs.previous_action.dtype == spec.dtype
    inputs = inputs._replace(previous_action=np.array([[action]], spec.dtype))
    core = net.initial_core(1)
    variables = parameters.draw(net.init, jax.random.key(0), inputs, core)
    for first in (False, True):
      inputs = inputs._replace(first=np.full((1, 1), first))
      codes.append(_apply(net, variables, inputs, core)[0][0, 0, 8:-1])
  # Unchanged, or one-hot; zero at FIRST.
  for code, expected in zip(
    codes, ([0.5, -1], [0, 0], [0, 1, 0, 1, 0, 0], [0] * 6), strict=True
  ):
    np.testing.assert_array_equal(code, expected)


@pytest.mark.parametrize('clip', [0.0, 0.5, 3.0])
def test_previous_reward_is_clipped_as_configured(clip):
  config = _config(use_previous_action=True, previous_reward_clip=clip)
  net, variables, inputs, core = _make(config, _FLOATS)
  features, _ = _apply(net, variables, inputs, core)
  assert np.abs(inputs.reward).max() > 3.0
  bound = clip or np.inf
  np.testing.assert_array_equal(
    features[..., -1], np.clip(inputs.reward, -bound, bound)
  )


def test_previous_action_is_unseen_where_unused():
  net, variables, inputs, core = _make(_config(lstm_size=3), _FLOATS)
  other = inputs._replace(previous_action=3 - inputs.previous_action)
  np.testing.assert_array_equal(
    _apply(net, variables, inputs, core)[0],
    _apply(net, variables, other, core)[0],
  )
