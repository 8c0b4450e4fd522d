"""Tests of `seedrl_jax.envs.specs`."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.envs import specs


@pytest.mark.parametrize(
  ('given', 'agents'),
  [
    (np.float64, np.float32),
    (np.int64, np.int32),
    (np.int16, np.int16),
    (np.uint8, np.uint8),
    (np.bool_, np.bool_),
  ],
)
def test_agents_get_at_most_32_bits(given: Any, agents: Any):
  assert specs.array_spec((2,), given) == ((2,), np.dtype(agents), ())


_STAMPS = spaces.Box(0, 2**40, (2,), np.int64)


@pytest.mark.parametrize(
  ('space', 'shape', 'dtype', 'categories'),
  [
    (spaces.Discrete(500), (), np.int32, (range(500),)),
    (spaces.Discrete(3, start=-1), (), np.int32, (range(-1, 2),)),
    (spaces.MultiDiscrete([2, 70]), (2,), np.int32, (range(2), range(70))),
    (spaces.MultiBinary(2), (2,), np.int8, ()),
    (spaces.Box(0, 9, (2,), np.int64), (2,), np.int32, ()),
    (_STAMPS, (2,), np.float32, ()),
    (spaces.Box(0, 2**32, (), np.uint64), (), np.float32, ()),
    (spaces.Discrete(2**40), (), np.float32, ()),
  ],
)
def test_observation_specs(
  space: Any, shape: tuple, dtype: type, categories: tuple
):
  expected = types.ArraySpec(shape, np.dtype(dtype), categories)
  assert specs.space_spec(space, '--x=Toy') == expected


def test_integers_beyond_32_bits_are_announced_once(
  caplog: pytest.LogCaptureFixture,
):
  for _ in range(2):
    specs.space_spec(_STAMPS, '--x=Stamp')
  (record,) = caplog.records
  assert record.getMessage().startswith('--x=Stamp: observes integers')


def test_outermost_keys_are_dropped_and_all_are_sorted():
  dropped = ('mission', 'absent')
  kept = specs.keep_keys(
    dropped, {'b': 1, 'mission': 2, 'a': {'mission': 3, 'c': 4}}
  )
  assert kept == {'a': {'c': 4, 'mission': 3}, 'b': 1}
  assert list(kept) == ['a', 'b'] and list(kept['a']) == ['c', 'mission']
  assert specs.keep_keys(dropped, 'mission') == 'mission'
  with pytest.raises(ValueError, match='nothing is left'):
    specs.keep_keys(dropped, {'mission': 1})


@pytest.mark.parametrize(
  ('space', 'dtype', 'shape', 'low', 'high'),
  [
    (spaces.Discrete(2, start=5), np.int32, (), [5], [6]),
    (spaces.MultiDiscrete([2, 3]), np.int32, (2,), [0, 0], [1, 2]),
    (spaces.MultiBinary(2), np.int32, (2,), [0, 0], [1, 1]),
    (spaces.Box(0, 9, (1,), np.int16), np.int32, (1,), [0], [9]),
    (
      spaces.Box(
        np.array([[0.0, -np.inf]]), np.array([[1 / 3, np.inf]]), dtype=float
      ),
      np.float32,
      (1, 2),
      [0, -np.inf],
      [1 / 3, np.inf],
    ),
    # EnvPool's bounds of ViZDoom's buttons.
    (
      spaces.Box(np.finfo(float).tiny, np.finfo(float).max, (1,), float),
      np.float32,
      (1,),
      [0],
      [np.inf],
    ),
  ],
)
def test_action_specs(
  space: Any, dtype: type, shape: tuple, low: list, high: list
):
  spec = specs.action_spec(space, '--config.env.id=Toy-v0')
  expected = (shape, np.dtype(dtype), tuple(low), tuple(high))
  assert spec == types.ActionSpec(*expected)


def test_actions_that_are_no_array_are_refused():
  with pytest.raises(ValueError, match=r'^--x=Toy: .*not Text; choose an'):
    specs.action_spec(spaces.Text(3), '--x=Toy')
