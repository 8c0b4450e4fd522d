"""Tests how arrays are laid out and coded, and which torso they get."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base
from seedrl_jax.networks import coding, network, observations
from seedrl_jax.runtime import workdir
from tests.networks import parameters

_BYTES = np.dtype(np.uint8)


def _config(**changes):
  config = base.get_config().network
  config.update(changes)
  return config


def _leaf(shape, dtype=_BYTES, values=(), env_id='Toy-v0', **changes):
  spec = types.ArraySpec(shape, np.dtype(dtype), values)
  return observations.make_leaf(_config(**changes), spec, env_id)


def _env_spec(observation, env_id='Toy-v0'):
  return types.EnvSpec(
    types.StreamSpec(observation, types.discrete(2), 1, env_id), 8, 2
  )


@pytest.mark.parametrize(
  ('shape', 'layout', 'expected'),
  [
    ((4, 84, 84), 'auto', (84, 84, 4)),
    ((84, 84, 4), 'auto', (84, 84, 4)),
    # More channels than pixels: the square pair tells.
    ((84, 84, 100), 'auto', (84, 84, 100)),
    ((100, 84, 84), 'auto', (84, 84, 100)),
    ((4, 4, 31), 'auto', (4, 4, 31)),
    ((72, 96, 4), 'auto', (72, 96, 4)),
    ((4, 72, 96), 'auto', (72, 96, 4)),
    ((8, 8, 8), 'auto', (8, 8, 8)),
    ((4, 84, 84), 'channels_last', (4, 84, 84)),
    ((84, 84, 4), 'channels_first', (84, 4, 84)),
    # Grey, and stacks of colour.
    ((84, 64), 'auto', (84, 64, 1)),
    ((84, 64), 'channels_first', (84, 64, 1)),
    ((5, 40, 48, 3), 'auto', (40, 48, 15)),
    ((5, 40, 48, 3), 'channels_last', (40, 48, 15)),
    ((5, 3, 40, 48), 'auto', (40, 48, 15)),
    ((5, 3, 40, 48), 'channels_first', (40, 48, 15)),
    # Neither is an image.
    ((10, 5), 'auto', (10, 5)),
    ((25, 4, 9, 9), 'auto', (25, 4, 9, 9)),
    ((), 'auto', ()),
  ],
)
def test_channels_come_last_on_the_device(shape, layout, expected):
  leaf = _leaf(shape, image_layout=layout)
  x = np.arange(2 * 3 * np.prod(shape, dtype=int)).reshape((2, 3, *shape))
  y = leaf._replace(layer=None).arrange(jnp.asarray(x))
  assert leaf.shape == expected
  assert y.shape == (2, 3, *expected)
  # Height and width are adjacent in both.
  first = leaf.axes[0] if leaf.axes else 0
  moved = np.moveaxis(x, (2 + first, 3 + first), (2, 3)) if leaf.axes else x
  np.testing.assert_array_equal(y, moved.reshape(y.shape))


@pytest.mark.parametrize(
  ('shape', 'name', 'torso'),
  [
    ((84, 84), 'auto', 'shallow'),
    ((3, 84, 84), 'auto', 'shallow'),
    ((4, 96, 96, 3), 'auto', 'shallow'),
    ((10, 5), 'auto', 'mlp'),
    ((10, 5), 'grid', 'grid'),
    ((84, 84), 'nature', 'nature'),
    ((4, 96, 96, 3), 'resnet', 'resnet'),
    ((84, 84), 'mlp', 'mlp'),
    ((2, 2, 2, 84, 84), 'auto', 'mlp'),
    ((7,), 'nature', 'mlp'),
  ],
)
def test_images_of_any_rank_are_convolved(shape, name, torso):
  leaf = _leaf(shape, torso=name)
  assert leaf.torso == torso
  assert f'torso {torso}' in leaf.describe()
  picture = types.ArraySpec((40, 40, 3), _BYTES)
  env_spec = _env_spec({'a': leaf.spec, 'b': picture})
  net = network.make_network(_config(torso=name, frame_stack=2), env_spec)
  inputs, core = network.dummy_inputs(env_spec), net.initial_core(1)
  jax.eval_shape(net.init, jax.random.key(0), inputs, core)


@pytest.mark.parametrize(
  ('shape', 'sentence'),
  [
    ((2, 2, 2, 84, 84), 'nature convolves arrays of 2 to 4 axes'),
    ((10, 5), 'needs images of at least 36'),
    ((7,), 'Toy-v0 observes none'),
  ],
)
def test_named_convolution_is_never_replaced(shape, sentence):
  env_spec = _env_spec(types.ArraySpec(shape, _BYTES))
  with pytest.raises(ValueError, match=sentence):
    network.make_network(_config(torso='nature'), env_spec)


def test_only_pictures_are_brought_into_blocks():
  assert _leaf((84, 84, 1), torso='tiny').layer.stride == 8
  assert _leaf((84, 84), torso='tiny').layer.stride == 8
  assert _leaf((31, 84, 1), torso='tiny').layer is None
  assert _leaf((84, 84, 1), torso='resnet').layer is None


@pytest.mark.parametrize(
  ('env_id', 'categories', 'has_levels'),
  [
    ('MiniGrid-Empty-8x8-v0', 'auto', True),
    ('gymnasium:BabyAI-GoToRedBall-v0', 'auto', True),
    ('Jumanji/Sokoban-v0', 'auto', True),
    ('my_envs:make', 'auto', False),
    ('my_envs:make', 'on', True),
    ('MiniGrid-Empty-8x8-v0', 'off', False),
  ],
)
def test_small_images_have_levels_as_configured(env_id, categories, has_levels):
  changes = {'env_id': env_id, 'categories': categories}
  leaf = _leaf((7, 7, 3), **changes)
  assert leaf.has_levels == has_levels
  assert ('one-hot levels per channel' in leaf.describe()) == has_levels
  assert not _leaf((7, 7, 3), np.float32, **changes).has_levels
  assert not _leaf((32, 32, 3), **changes).has_levels


def _coded(leaf, x):
  module = coding.Coded(leaf)
  x = jnp.asarray(x)
  variables = parameters.draw(module.init, jax.random.key(0), x)
  return np.asarray(jax.jit(module.apply)(variables, x)), variables


def test_networks_for_minigrid_are_those_of_earlier_releases():
  direction = types.ArraySpec((), np.dtype(np.int32), (range(4),))
  image = types.ArraySpec((7, 7, 3), _BYTES)
  env_spec = _env_spec(
    {'direction': direction, 'image': image}, 'MiniGrid-Empty-8x8-v0'
  )
  net = network.make_network(_config(), env_spec)
  inputs, core = network.dummy_inputs(env_spec), net.initial_core(1)
  variables = jax.eval_shape(net.init, jax.random.key(0), inputs, core)
  params = variables['params']
  assert params.keys() == {'torso_0', 'torso_1'}
  assert params['torso_0']['Dense_0']['kernel'].shape == (64 + 1, 64)
  assert params['torso_1']['conv_0']['kernel'].shape == (3, 3, 3 * 17, 16)


def test_choices_are_coded_whole():
  leaf = _leaf((), np.int32, (range(-1, 500),))
  y, _ = _coded(leaf, [-1, 3, 499, 500])
  assert y.shape == (4, 501)
  np.testing.assert_array_equal(np.argmax(y[:3], -1), [0, 4, 500])
  np.testing.assert_array_equal(y.sum(-1), [1, 1, 1, 0])


def test_several_choices_and_their_stacks_are_coded_side_by_side():
  leaf = _leaf((2,), np.int32, (range(2), range(5, 8)))
  y, _ = _coded(leaf, [[1, 7]])
  np.testing.assert_array_equal(y, [[0, 1, 0, 0, 1]])
  y, _ = _coded(leaf, [[0, 5, 1, 6]])
  np.testing.assert_array_equal(y, [[1, 0, 1, 0, 0, 0, 1, 0, 1, 0]])


def test_choices_in_an_image_are_coded_in_its_channels():
  leaf = _leaf((2, 5, 6), np.int32, (range(2),) * 30 + (range(3),) * 30)
  assert leaf.shape == (5, 6, 2) and leaf.torso == 'grid'
  x = np.zeros((1, 5, 6, 2), np.int32)
  x[0, 1, 2] = 1, 2
  y, _ = _coded(leaf, x)
  assert y.shape == (1, 5, 6, 5)
  np.testing.assert_array_equal(y[0, 1, 2], [0, 1, 0, 0, 1])


def test_many_choices_get_learned_vectors():
  leaf = _leaf((2,), np.int32, (range(7), range(1, 5001)))
  y, variables = _coded(leaf, [[6, 1], [0, 5000]])
  (table,) = jax.tree.leaves(variables)
  assert table.shape == (5007, 64)
  expected = table[np.array([[6, 7], [0, 5006]])].reshape((2, 128))
  np.testing.assert_array_equal(y, expected)
  assert '5007 learned vectors' in leaf.describe()


_BRIGHTNESS = 4_800 * (range(256),)


@pytest.mark.parametrize(
  ('values', 'dtype', 'words'),
  [
    (_BRIGHTNESS, np.uint8, 'of up to 256 values, taken as numbers'),
    (4_800 * (range(1_000),), np.int32, 'of up to 1000 values, taken as num'),
    # Few, as of tiles.
    (4_800 * (range(16),), None, '48 one-hot levels'),
  ],
)
def test_pictures_of_many_values_are_not_coded(values, dtype, words):
  leaf = _leaf((3, 40, 40), np.int32, values)
  assert leaf.is_coded == (dtype is None)
  assert leaf.arrange(jnp.zeros((1, 3, 40, 40), jnp.int32)).dtype == (
    dtype or jnp.int32
  )
  assert '40x40 pixels with 3 channels (axes 1 and 2)' in leaf.describe()
  assert words in leaf.describe()


def test_too_many_choices_are_refused():
  spec = types.ArraySpec((), np.dtype(np.int32), (range(2**30),))
  with pytest.raises(ValueError, match='among 1073741824 values, too many'):
    network.make_network(_config(), _env_spec(spec))


@pytest.mark.parametrize(
  ('spec', 'changes', 'reason'),
  [
    (types.ArraySpec((), np.dtype(np.int32), (range(16),)), {}, ''),
    (types.ArraySpec((4, 84, 84), _BYTES), {}, ''),
    (types.ArraySpec((7, 7, 3), _BYTES), {'categories': 'on'}, ''),
    (types.ArraySpec((10, 5), np.dtype(np.float32)), {}, ''),
    (types.ArraySpec((), np.dtype(np.int32), (range(500),)), {}, '500 one-hot'),
    (types.ArraySpec((2,), np.dtype(np.int32), (range(3),) * 2), {}, '6 one-'),
    (types.ArraySpec((84, 84), _BYTES), {}, '84x84 pixels with 1 channel'),
    (types.ArraySpec((40, 40, 3), _BYTES, _BRIGHTNESS), {}, ''),
    (
      *(types.ArraySpec((40, 40, 3), np.dtype(np.int32), _BRIGHTNESS), {}),
      'taken as numbers',
    ),
    # All parameters have the same shapes.
    (types.ArraySpec((3, 3, 5), _BYTES), {'categories': 'on'}, r'axes 0 and 1'),
    (types.ArraySpec((7, 7, 3), _BYTES), {}, '7x7 pixels'),
  ],
)
def test_networks_of_earlier_releases_are_recognised(
  tmp_path, spec, changes, reason
):
  directory, env_spec = workdir.Workdir(tmp_path), _env_spec({'x': spec})
  directory.write_env_spec(env_spec)
  arguments = directory, _config(**changes), env_spec
  observations.check_release(*arguments)
  saved = json.loads(directory.env_spec_json.read_text())
  del dict(saved['observation']['entries'])['x']['categories']
  directory.env_spec_json.write_text(json.dumps(saved))
  assert directory.read_env_spec().observation['x'].categories is None
  if not reason:
    observations.check_release(*arguments)
    return
  with pytest.raises(workdir.WorkdirError, match=f'earlier release.*{reason}'):
    observations.check_release(*arguments)


def _prepared(x, dtype=jnp.float32, has_levels=False):
  function = jax.jit(coding.to_features, static_argnums=(1, 2))
  features = function(x, dtype, has_levels)
  assert features.dtype == dtype
  return np.asarray(features)


def test_pictures_are_scaled_to_one():
  x = np.full((2, 32, 32, 3), 255, np.uint8)
  y = _prepared(x)
  assert y.shape == x.shape
  np.testing.assert_allclose(y, 1.0, rtol=1e-6)


@pytest.mark.parametrize(
  ('shape', 'dtype', 'expected'),
  [
    ((84, 84, 4), np.uint8, True),
    ((84, 84, 4), np.float32, False),
    ((7, 7, 3), np.uint8, False),
    ((128,), np.uint8, False),
  ],
)
def test_images_of_bytes_are_normalized(shape, dtype, expected):
  leaf = _leaf(shape, dtype, normalize_pixels=True)
  assert leaf.is_normalized == expected
  assert leaf.describe().endswith('normalised pixels') == expected


def test_bytes_of_a_vector_are_scaled():
  y = _prepared(np.array([[0, 51]], np.uint8))
  np.testing.assert_allclose(y, [[0.0, 0.2]], rtol=1e-6)


def test_grids_gain_a_one_hot_code():
  x = np.zeros((1, 7, 7, 3), np.uint8)
  x[0, 2, 3, 1] = 5
  y = _prepared(x, has_levels=True)
  assert y.shape == (1, 7, 7, 3 * 16 + 3)
  code = y[0, 2, 3, :48].reshape((3, 16))
  np.testing.assert_array_equal(np.argmax(code, -1), [0, 5, 0])
  np.testing.assert_array_equal(np.sum(code, -1), 1.0)


def test_scalar_integers_become_one_hot():
  y = _prepared(np.array([3, 100], np.int32))
  np.testing.assert_array_equal(np.argmax(y[:, :-1], -1), [3, 63])
  np.testing.assert_allclose(y[:, -1], [3 / 64, 100 / 64])


@pytest.mark.parametrize('dtype', [jnp.bool_, jnp.float32])
def test_scalar_that_is_no_integer_stays_one_number(dtype):
  np.testing.assert_array_equal(_prepared(np.array([0, 1], dtype)), [0, 1])


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.int32])
def test_other_numbers_are_only_cast(dtype):
  y = _prepared(np.array([[-1, 20]], dtype), jnp.bfloat16)
  np.testing.assert_array_equal(y.astype(np.float32), [[-1.0, 20.0]])
