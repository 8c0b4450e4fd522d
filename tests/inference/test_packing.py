"""Tests of the packed header and the packed agent output."""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import packing


class _Output(NamedTuple):
  action: Any
  logits: Any
  extra: Any


def _output(n: int) -> _Output:
  rng = np.random.default_rng(n)
  bits = rng.integers(0, 2**32, (n, 2, 3), np.uint64).astype(np.uint32)
  logits = rng.normal(size=(n, 5)).astype(np.float32)
  logits[0, :4] = np.inf, -np.inf, -0.0, np.finfo(np.float32).max
  return _Output(
    action=rng.integers(-(2**31), 2**31, n).astype(np.int32),
    logits=logits,
    extra={'bits': bits, 'value': rng.normal(size=n).astype(np.float32)},
  )


def _spec(output: Any) -> Any:
  return jax.tree.map(lambda x: types.ArraySpec(x.shape[1:], x.dtype), output)


def _action_spec(dtype: Any, *shape: int) -> types.ActionSpec:
  size = int(np.prod(shape))
  return types.ActionSpec(shape, np.dtype(dtype), (-1,) * size, (1,) * size)


_ACTIONS = [
  _action_spec(np.int32),
  _action_spec(np.int32, 3),
  _action_spec(np.float32),
  _action_spec(np.float32, 2, 2),
]


@pytest.mark.parametrize('action', _ACTIONS)
def test_header_arrives_as_it_was_written(action: types.ActionSpec):
  bits = np.arange(5 * int(np.prod(action.shape)), dtype=np.int32) - 7
  expected = packing.Header(
    slot=np.array([4, 0, 3, 1, 2], np.int32),
    env_id=np.array([2**31 - 1, 7, 0, 5, 6], np.int32),
    first=np.array([True, False, False, True, False]),
    reward=np.array([0.0, -0.0, -1.5, 1e30, np.inf], np.float32),
    previous_action=bits.view(action.dtype).reshape(5, *action.shape),
  )
  header = packing.make_header(6, 9, action)
  for view, values in zip(
    packing.header_views(header[:5], action), expected, strict=True
  ):
    view[:] = values
  read = jax.jit(functools.partial(packing.read_header, action=action))
  result = jax.device_get(read(header))
  # The rest is padding.
  assert [np.any(x[5]) for x in result] == [True, False, False, False, False]
  assert result.slot[5] == 9
  result = packing.Header(*(x[:5] for x in result))
  chex.assert_trees_all_equal_shapes_and_dtypes(result, expected)
  # Compare bits: some of these floats are nan.
  for x, y in zip(result, expected, strict=True):
    assert np.asarray(x).tobytes() == y.tobytes()


@pytest.mark.parametrize('n', [1, 4])
def test_unpacker_undoes_pack(n: int):
  output = _output(n)
  unpack = packing.Unpacker(_spec(output))
  packed = np.asarray(jax.jit(packing.pack)(output))
  chex.assert_shape(packed, (n, unpack.width))
  assert packed.dtype == np.int32 and unpack.width == 1 + 5 + 6 + 1
  result = unpack(packed)
  assert isinstance(result, _Output)
  chex.assert_trees_all_equal_shapes_and_dtypes(result, output)
  chex.assert_trees_all_equal(result, output)


def test_unpacked_leaves_are_in_the_order_of_the_tree():
  output = _output(4)
  unpack = packing.Unpacker(_spec(output))
  leaves = unpack.leaves(np.asarray(packing.pack(output)))
  expected = jax.tree.leaves(output)
  assert unpack.num_leaves == len(leaves) == 4
  chex.assert_trees_all_equal_shapes_and_dtypes(leaves, expected)
  chex.assert_trees_all_equal(leaves, expected)


def test_nest_puts_anything_where_its_leaf_was():
  unpack = packing.Unpacker(_spec(_output(1)))
  expected = _Output(action=0, logits=1, extra={'bits': 2, 'value': 3})
  assert unpack.nest(range(unpack.num_leaves)) == expected


def test_unpacker_takes_the_rows_of_a_padded_batch():
  output = _output(6)
  packed = np.asarray(packing.pack(output))
  result = packing.Unpacker(_spec(output))(packed[:4])
  chex.assert_trees_all_equal(result, jax.tree.map(lambda x: x[:4], output))


def test_single_leaf_needs_no_concatenation():
  action = np.arange(3, dtype=np.int32)
  packed = np.asarray(packing.pack((action,)))
  chex.assert_shape(packed, (3, 1))
  spec = (types.ArraySpec((), np.dtype(np.int32)),)
  chex.assert_trees_all_equal(packing.Unpacker(spec)(packed), (action,))


def test_unpacker_copies_nothing_flat():
  output = _output(4)
  packed = np.array(packing.pack(output))
  result = packing.Unpacker(_spec(output))(packed)
  for leaf in (result.action, result.logits, result.extra['value']):
    assert np.shares_memory(leaf, packed)


@pytest.mark.parametrize('dtype', [jnp.uint8, jnp.bool_, jnp.float16])
def test_leaf_of_another_size_is_refused(dtype: Any):
  leaf = jnp.zeros((3, 2), dtype)
  name = jnp.dtype(dtype).name
  with pytest.raises(TypeError, match=rf'is {name}\[3, 2\].*four-byte'):
    packing.pack({'action': jnp.zeros(3, jnp.int32), 'wrong': leaf})
