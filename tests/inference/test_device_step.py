"""Tests of the core-state table and the act step over its rows."""

from typing import Any

import chex
import jax
import numpy as np
import pytest

from seedrl_jax.inference import device_step, specs
from tests.inference import toys

_SLOTS = 6


def _make(
  has_core: bool = True, seed: int = 0, device: int = 0
) -> device_step.DeviceStep:
  agent = toys.make_agent(has_core)
  return device_step.DeviceStep(
    agent,
    toys.SPEC,
    specs.output_spec(agent, toys.SPEC, toys.PARAMS),
    jax.local_devices()[device],
    _SLOTS,
    jax.random.PRNGKey(seed),
  )


class _Driver:
  """Acts for random batches and tracks the core states in NumPy."""

  def __init__(self, step: device_step.DeviceStep, seed: int = 0):
    self._step = step
    self._rng = np.random.default_rng(seed)
    self.steps = np.zeros(_SLOTS, np.int32)
    self.vector = np.zeros((_SLOTS, 2), np.float32)

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
      self._step,
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
    if before:
      chex.assert_trees_all_equal(
        jax.tree.map(lambda x: np.asarray(x)[:n], before),
        {'steps': self.steps[slots], 'vector': self.vector[slots]},
      )
    self.steps[slots] = np.where(first, 0, self.steps[slots]) + 1
    self.vector[slots] = vector[:n]
    return toys.Output(*self._step.output.views(np.asarray(packed)[:n]))

  def check_table(self) -> None:
    """Reads every row of the table by a step over all of them."""
    self.act(list(range(_SLOTS)))


def _blank(size: int) -> dict[str, np.ndarray]:
  return {
    'image': np.zeros((size, 2, 1), np.uint8),
    'vector': np.zeros((size, 2), np.float32),
  }


def _fill(
  step: device_step.DeviceStep, header: np.ndarray, *columns: Any
) -> None:
  """Fills a header's columns, in the order of `specs.Header`."""
  for view, values in zip(step.header.views(header), columns, strict=True):
    view[:] = values


def test_table_rows_follow_their_slots_and_padding_touches_none():
  driver = _Driver(_make())
  rng = np.random.default_rng(1)
  for _ in range(30):
    n, size = ((1, 1), (2, 4), (3, 4), (4, 4))[rng.integers(4)]
    driver.act(rng.permutation(_SLOTS)[:n].tolist(), size)
    if rng.random() < 0.3:
      driver.check_table()
  driver.check_table()


def test_padding_changes_no_output_of_a_feed_forward_agent():
  output = _Driver(_make(has_core=False)).act([4, 1], size=4)
  assert output.env_id.tolist() == [40, 10]
  chex.assert_shape(output.seen, (2, 3))


def test_agent_sees_the_header_and_the_parameters():
  step = _make()
  header = step.make_header(2)
  ids = [33, toys.FIRST_EVAL_ID]
  _fill(step, header, [3, 5], ids, [False, True], [1.5, -2], [7, 0])
  packed, _ = step(toys.PARAMS, _blank(2), header)
  output = toys.Output(*step.output.views(np.asarray(packed)))
  seen = np.array([[4.5, 7, 0], [-6, 0, 1]], np.float32)
  chex.assert_trees_all_equal(output.seen, seen)
  assert output.env_id.tolist() == ids
  assert output.action[0] > 0 and output.action[1] == 0


@pytest.mark.parametrize('has_core', [True, False])
def test_compile_changes_neither_table_nor_key(has_core: bool):
  plain, compiled = _make(has_core), _make(has_core)
  drivers = _Driver(plain), _Driver(compiled)
  outputs = [d.act([1, 3, 4]) for d in drivers]
  key = compiled.key.copy()
  compiled.compile(toys.PARAMS, (3, 6))
  chex.assert_trees_all_equal(compiled.key, key)
  for slots in ([0, 1, 2, 3, 4, 5], [5, 2, 0]):
    outputs = [d.act(slots) for d in drivers]
    chex.assert_trees_all_equal(*outputs)


def test_nothing_is_compiled_after_compile():
  step = _make()
  driver = _Driver(step)
  sizes = (1, 4, 5)
  step.compile(toys.PARAMS, sizes)
  with toys.count_compilations() as compiled:
    for size in sizes:
      for n in range(1, size + 1):
        driver.act(list(range(n)), size=size)
    for size in sizes:
      _, before = step(toys.PARAMS, _blank(size), step.make_header(size))
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
  for rows in ([5], [4, 1, 2], [5, 4, 3, 2, 1, 0]):
    taken = step.take_core(before, np.array(rows))
    assert all(isinstance(x, np.ndarray) for x in taken)
    expected = [np.asarray(x)[rows] for x in before.values()]
    chex.assert_trees_all_equal(taken, expected)


def test_each_step_has_a_key_of_its_own():
  step = _make()
  driver = _Driver(step)
  actions = [driver.act([0, 1, 2]).action.tolist()]
  key = step.key
  kept = key.copy()
  actions += [driver.act([0, 1, 2]).action.tolist() for _ in range(3)]
  assert len({*map(tuple, actions)}) == 4
  # Donating the key's buffer must not change a returned key.
  chex.assert_trees_all_equal(key, kept)
  assert (step.key != key).any()
  step._key = jax.device_put(key)
  assert driver.act([0, 1, 2]).action.tolist() == actions[1]
  other = _Driver(_make(seed=1)).act([0, 1, 2]).action
  assert other.tolist() != actions[0]


def test_table_is_donated_and_stays_on_its_device():
  device = jax.local_devices()[-1]
  step = _make(device=-1)
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
    (1, 6, (1, 2, 4, 6)),
    (5, 7, (7,)),
    (8, 8, (8,)),
    (4, 9, (4, 8, 9)),
  ],
)
def test_batch_buckets(minimum: int, maximum: int, sizes: tuple[int, ...]):
  assert device_step.batch_buckets(minimum, maximum) == sizes
