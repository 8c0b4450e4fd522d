"""Tests of the specs of inference's arrays, and of packed arrays."""

from typing import Any, NamedTuple

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import specs
from tests.inference import toys


class _Output(NamedTuple):
  logits: Any
  action: Any
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


def _packing(output: _Output) -> specs.Packing:
  return specs.Packing(
    jax.tree.map(lambda x: types.ArraySpec(x.shape[1:], x.dtype), output)
  )


@pytest.mark.parametrize('n', [1, 4])
def test_output_arrives_on_the_host(n: int):
  output = _output(n)
  packing = _packing(output)
  packed = np.asarray(jax.jit(packing.pack)(output))
  assert packed.dtype == np.int32 and packed.shape == (n, packing.width)
  views = packing.views(packed)
  assert all(np.shares_memory(x, packed) for x in views)
  chex.assert_trees_all_equal_shapes_and_dtypes(views, jax.tree.leaves(output))
  chex.assert_trees_all_equal(views, jax.tree.leaves(output))
  assert views[packing.numbers.action] is views[1]
  # The first rows of a padded batch.
  chex.assert_trees_all_equal(packing.views(packed[:1])[0], output.logits[:1])


def test_leaf_of_another_size_is_refused():
  leaf = types.ArraySpec((2,), np.dtype(np.float16))
  with pytest.raises(TypeError, match=r'is float16\[2\].*four-byte'):
    specs.Packing({'wrong': leaf})


@pytest.mark.parametrize('dtype', [np.int32, np.float32])
@pytest.mark.parametrize('shape', [(), (3,), (2, 2)])
def test_header_arrives_on_the_device(dtype: Any, shape: tuple[int, ...]):
  size = int(np.prod(shape))
  action = types.ActionSpec(shape, np.dtype(dtype), (-1,) * size, (1,) * size)
  bits = np.arange(5 * size, dtype=np.int32) - 7
  expected = specs.Header(
    slot=np.array([4, 0, 3, 1, 2], np.int32),
    env_id=np.array([2**31 - 1, 7, 0, 5, 6], np.int32),
    first=np.array([1, 0, 0, 1, 0], np.int32),
    reward=np.array([0.0, -0.0, -1.5, 1e30, np.inf], np.float32),
    previous_action=bits.view(dtype).reshape(5, *shape),
  )
  packing = specs.Packing(specs.header_spec(action))
  header = np.zeros((6, packing.width), np.int32)
  for view, values in zip(packing.views(header[:5]), expected, strict=True):
    view[:] = values
  result = jax.device_get(jax.jit(packing.unpack)(header))
  assert not any(x[5].any() for x in result)
  result = specs.Header(*(x[:5] for x in result))
  chex.assert_trees_all_equal_shapes_and_dtypes(result, expected)
  # Compare bits: some of these floats are nan.
  for x, y in zip(result, expected, strict=True):
    assert np.asarray(x).tobytes() == y.tobytes()


def test_specs_describe_one_environment():
  int32, float32 = np.dtype(np.int32), np.dtype(np.float32)
  agent = toys.make_agent()
  assert specs.output_spec(agent, toys.SPEC, toys.PARAMS) == toys.Output(
    action=types.ArraySpec((), int32),
    seen=types.ArraySpec((3,), float32),
    env_id=types.ArraySpec((), int32),
  )
  assert specs.core_spec(agent) == {
    'steps': types.ArraySpec((), int32),
    'vector': types.ArraySpec((2,), float32),
  }
  assert specs.core_spec(toys.make_agent(has_core=False)) == ()


def test_actions_that_the_environments_do_not_take_are_refused():
  action = types.ActionSpec((), np.dtype(np.float32), (-1,), (1,))
  with pytest.raises(
    ValueError, match=r'with int32\[\], but the environments take float32\[\]'
  ):
    specs.output_spec(
      toys.make_agent(), toys.SPEC._replace(action=action), toys.PARAMS
    )


def test_unrolls_have_columns_as_environment_and_agent_say():
  action = types.ActionSpec((2,), np.dtype(np.float32), (-1, -1), (1, 1))
  observation = {'x': types.ArraySpec((3,), np.dtype(np.uint8))}
  env_spec = types.EnvSpec(
    types.StreamSpec(observation, action, 1, 'toy'), 4, 0
  )
  core = types.ArraySpec((7,), np.dtype(np.float32))
  output = {'action': types.ArraySpec((2,), np.dtype(np.float32))}
  spec = specs.unroll_spec(env_spec, 5, output, core)
  assert spec.steps.observation['x'].shape == (6, 3)
  assert spec.steps.agent_output['action'].shape == (6, 2)
  expected = types.ArraySpec((6, 2), np.dtype(np.float32))
  assert spec.steps.previous_action == expected
  assert spec.steps.reward == types.ArraySpec((6,), np.dtype(np.float32))
  assert spec.initial_core == core
  assert spec.env_id.shape == ()
  batch = specs.blank_batch(spec, 3)
  assert batch.unroll.steps.previous_action.shape == (6, 3, 2)
  assert batch.unroll.initial_core.shape == (3, 7)
  assert batch.unroll.env_id.shape == batch.weight.shape == (3,)
