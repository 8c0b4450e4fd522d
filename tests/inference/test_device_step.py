"""Tests of the core-state table and the act step over its rows."""

from typing import Any

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.inference import device_step, packing
from tests.inference import toys

_SLOTS = 6


def _make(has_core: bool = True, seed: int = 0) -> device_step.DeviceStep:
  return device_step.DeviceStep(
    toys.make_agent(has_core),
    toys.SPEC,
    jax.local_devices()[0],
    _SLOTS,
    jax.random.PRNGKey(seed),
  )


def _output_spec(spec: types.EnvSpec) -> types.Nest:
  return device_step.output_spec(toys.make_agent(), spec, toys.PARAMS)


class _Driver:
  """Acts for random batches and tracks the core states in NumPy."""

  def __init__(self, step: device_step.DeviceStep, seed: int = 0):
    self._step = step
    self._rng = np.random.default_rng(seed)
    self.steps = np.zeros(_SLOTS, np.int32)
    self.vector = np.zeros((_SLOTS, 2), np.float32)
    self._unpack = packing.Unpacker(_output_spec(toys.SPEC))

  def act(self, slots: list[int], size: int = 0) -> toys.Output:
    """Acts for slots, padded to `size`; checks the states before."""
    n = len(slots)
    rng = self._rng
    size = size or n
    header = self._step.make_header(size)
    # Values beside a padding slot must not matter.
    header[n:, 1:] = 1
    first = rng.random(n) < 0.3
    _fill(
      header[:n],
      np.array(slots),
      10 * np.array(slots, np.int32),
      first,
      rng.integers(0, 9, n),
      rng.integers(0, 9, n),
    )
    vector = rng.normal(size=(size, 2)).astype(np.float32)
    image = rng.integers(0, 255, (size, 2, 1)).astype(np.uint8)
    observation = {'image': image, 'vector': vector}
    packed, before = self._step(toys.PARAMS, observation, header)
    if self._step.has_core:
      chex.assert_trees_all_equal(
        jax.tree.map(lambda x: np.asarray(x)[:n], before),
        {'steps': self.steps[slots], 'vector': self.vector[slots]},
      )
    self.steps[slots] = np.where(first, 0, self.steps[slots]) + 1
    self.vector[slots] = vector[:n]
    return self._unpack(np.asarray(packed)[:n])

  def check_table(self) -> None:
    """Reads every row of the table by a step over all of them."""
    self.act(list(range(_SLOTS)))


def _fill(header: np.ndarray, *columns: Any) -> None:
  """Fills a header's columns, in the order of `packing.Header`."""
  views = packing.header_views(header, toys.SPEC.action)
  for view, values in zip(views, columns, strict=True):
    view[:] = values


def test_table_rows_follow_their_slots():
  driver = _Driver(_make())
  rng = np.random.default_rng(1)
  for _ in range(30):
    # Each size is compiled by itself.
    size = int(rng.choice([1, 4, _SLOTS]))
    driver.act(rng.permutation(_SLOTS)[:size].tolist())
  driver.check_table()


def test_padding_touches_no_environment():
  driver = _Driver(_make())
  rng = np.random.default_rng(2)
  for _ in range(20):
    size = int(rng.integers(1, 5))
    driver.act(rng.permutation(_SLOTS)[:size].tolist(), size=4)
    driver.check_table()


def test_padding_changes_no_output_of_a_feed_forward_agent():
  step = _make(has_core=False)
  assert not step.has_core
  assert device_step.core_spec(toys.make_agent(has_core=False)) == ()
  output = _Driver(step).act([4, 1], size=4)
  assert output.env_id.tolist() == [40, 10]
  chex.assert_shape(output.seen, (2, 3))


def test_agent_sees_the_header_and_the_parameters():
  step = _make()
  header = step.make_header(2)
  _fill(
    header, [3, 5], [33, toys.FIRST_EVAL_ID], [False, True], [1.5, -2], [7, 0]
  )
  observation = {
    'image': np.zeros((2, 2, 1), np.uint8),
    'vector': np.zeros((2, 2), np.float32),
  }
  packed, _ = step(toys.PARAMS, observation, header)
  output = packing.Unpacker(_output_spec(toys.SPEC))(np.asarray(packed))
  seen = np.array([[4.5, 7, 0], [-6, 0, 1]], np.float32)
  chex.assert_trees_all_equal(output.seen, seen)
  assert output.env_id.tolist() == [33, toys.FIRST_EVAL_ID]
  assert output.action[0] > 0 and output.action[1] == 0


def test_specs_describe_one_environment():
  int32, float32 = np.dtype(np.int32), np.dtype(np.float32)
  assert _output_spec(toys.SPEC) == toys.Output(
    action=types.ArraySpec((), int32),
    seen=types.ArraySpec((3,), float32),
    env_id=types.ArraySpec((), int32),
  )
  assert device_step.core_spec(toys.make_agent()) == {
    'steps': types.ArraySpec((), int32),
    'vector': types.ArraySpec((2,), float32),
  }


def test_actions_that_the_environments_do_not_take_are_refused():
  action = types.ActionSpec((), np.dtype(np.float32), (-1,), (1,))
  with pytest.raises(
    ValueError, match=r'with int32\[\], but the environments take float32\[\]'
  ):
    _output_spec(toys.SPEC._replace(action=action))


@pytest.mark.parametrize('has_core', [True, False])
def test_compile_changes_neither_table_nor_key(has_core: bool):
  plain, compiled = _make(has_core), _make(has_core)
  drivers = _Driver(plain), _Driver(compiled)
  outputs = [d.act([1, 3, 4]) for d in drivers]
  key = compiled.key.copy()
  compiled.compile(toys.PARAMS, (1, 2, 6))
  chex.assert_trees_all_equal(compiled.key, key)
  for slots in ([0, 1, 2, 3, 4, 5], [5, 2]):
    outputs = [d.act(slots) for d in drivers]
    chex.assert_trees_all_equal(*outputs)


@pytest.mark.parametrize('sizes', [(6,), (2, 4, 6), (1, 2, 4, 5)])
def test_nothing_is_compiled_after_compile(sizes: tuple[int, ...]):
  step = _make()
  driver = _Driver(step)
  step.compile(toys.PARAMS, sizes)
  rng = np.random.default_rng(3)
  with toys.count_compilations() as compiled:
    for size in sizes * 3:
      n = int(rng.integers(1, size + 1))
      driver.act(rng.permutation(_SLOTS)[:n].tolist(), size=size)
    step.set_key(step.key)
    for size in sizes:
      header = step.make_header(size)
      observation = {
        'image': np.zeros((size, 2, 1), np.uint8),
        'vector': np.zeros((size, 2), np.float32),
      }
      _, before = step(toys.PARAMS, observation, header)
      for count in range(1, size + 1):
        step.take_core(before, np.arange(count))
    assert not compiled
    # The listener works: another size is compiled.
    driver.act([0, 1, 2], size=7)
    assert compiled


def test_take_core_fetches_the_rows_asked_for():
  step = _make()
  before = {
    'steps': jax.numpy.arange(6),
    'vector': jax.numpy.arange(12.0).reshape(6, 2),
  }
  for rows in ([5], [0, 3], [4, 1, 2], [5, 4, 3, 2, 1, 0]):
    taken = step.take_core(before, np.array(rows))
    assert all(isinstance(x, np.ndarray) for x in taken.values())
    expected = {k: np.asarray(x)[rows] for k, x in before.items()}
    chex.assert_trees_all_equal(taken, expected)


def test_every_step_has_its_own_key():
  driver = _Driver(_make())
  actions = [tuple(driver.act([0, 1, 2]).action.tolist()) for _ in range(5)]
  assert len(set(actions)) == 5


def test_same_key_acts_the_same_and_another_does_not():
  one, two, other = (
    _Driver(_make(seed=s)).act(list(range(6))).action for s in (0, 0, 1)
  )
  chex.assert_trees_all_equal(one, two)
  assert (one != other).any()


def test_set_key_continues_where_key_was_taken():
  step = _make()
  driver = _Driver(step)
  driver.act([0, 1, 2])
  key = step.key
  kept = key.copy()
  expected = driver.act([0, 1, 2]).action.copy()
  driver.act([0, 1, 2])
  # Donating the key's buffer must not change a returned key.
  chex.assert_trees_all_equal(key, kept)
  assert (step.key != key).any()
  step.set_key(key)
  chex.assert_trees_all_equal(driver.act([0, 1, 2]).action, expected)


def test_table_is_donated_and_stays_on_its_device():
  device = jax.local_devices()[-1]
  step = device_step.DeviceStep(
    toys.make_agent(), toys.SPEC, device, _SLOTS, jax.random.PRNGKey(0)
  )
  old, key = step._table['vector'], step._key
  # A row for padding; the jitted step checks no bounds.
  chex.assert_shape(old, (_SLOTS + 1, 2))
  _Driver(step).act([0, 1])
  assert old.is_deleted()
  # Checkpoints read it from another thread.
  assert not key.is_deleted()
  assert step._table['vector'].devices() == {device}


@pytest.mark.parametrize(
  ('minimum', 'maximum', 'sizes'),
  [
    (1, 1, (1,)),
    (1, 8, (1, 2, 4, 8)),
    (1, 6, (1, 2, 4, 6)),
    (3, 6, (4, 6)),
    (5, 7, (7,)),
    (8, 8, (8,)),
    (4, 9, (4, 8, 9)),
  ],
)
def test_batch_buckets(minimum: int, maximum: int, sizes: tuple[int, ...]):
  assert device_step.batch_buckets(minimum, maximum) == sizes


@pytest.mark.parametrize(('minimum', 'maximum'), [(0, 4), (5, 4), (-1, -1)])
def test_impossible_batch_sizes_are_refused(minimum: int, maximum: int):
  with pytest.raises(ValueError, match=f'between {minimum} and {maximum}'):
    device_step.batch_buckets(minimum, maximum)
