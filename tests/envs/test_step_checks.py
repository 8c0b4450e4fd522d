"""Tests for envs/step_checks.py."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.envs import specs, step_checks

_SPEC = {
  'inner': {'z': types.ArraySpec((), np.dtype(np.int32))},
  'x': types.ArraySpec((2,), np.dtype(np.float32)),
}


@pytest.mark.parametrize(
  'value', [1.5, np.float32(1.5), np.array(1.5), np.array([[1.5]])]
)
def test_one_number_of_any_kind_is_a_reward(value: Any):
  number = step_checks.reward(value)
  assert isinstance(number, float) and number == 1.5


@pytest.mark.parametrize(
  'value',
  [
    None,
    np.nan,
    -np.inf,
    2e6,
    10**400,
    '3',
    b'3',
    {},
    np.complex64(3),
    [1.0, 2.0],
    [[1.0], [1.0, 2.0]],
  ],
)
def test_other_rewards_are_invalid(value: Any):
  with pytest.raises(step_checks.InvalidStep, match=r'^gave a reward of ') as e:
    step_checks.reward(value)
  assert len(str(e.value)) < 250


@pytest.mark.parametrize(
  ('method', 'result', 'text'),
  [
    ('step', (0, 1.0, True, {}), '4 values from step instead'),
    ('step', [0, 1.0, True, False, {}], 'list from step'),
    ('reset', np.zeros(2), 'ndarray from reset instead'),
    ('reset', (0,), r'1 values .* \(observation, info\)'),
  ],
)
def test_wrong_number_of_values(method: str, result: Any, text: str):
  with pytest.raises(step_checks.InvalidStep, match=f'^returned {text}'):
    step_checks.values(method, result)


def test_observations_are_copied_to_their_row():
  rows = step_checks.new_rows(_SPEC, 2)
  for row in range(2):
    value = {'x': [row, 0.5], 'inner': {'z': row + 7}, 'text': 'unread'}
    step_checks.write_observation(value, _SPEC, rows, row)
  assert rows['x'].tolist() == [[0, 0.5], [1, 0.5]]
  assert rows['inner']['z'].tolist() == [7, 8]
  assert rows['x'].dtype == np.float32


@pytest.mark.parametrize(
  ('change', 'text'),
  [
    ({'x': np.zeros(3)}, r"for the key 'x' of shape \(3,\) instead of \(2,\)"),
    ({'x': None}, r"for the key 'x' of shape \(\) "),
    ({'x': [[1], [1, 2]]}, "for the key 'x' that is not an array"),
    (
      {'inner': {'z': 0.5}},
      "for the key 'inner.z' of dtype float64, which int",
    ),
    ({'inner': {}}, "without the key 'inner.z'"),
    ({'inner': 7}, "for the key 'inner' that is a int, not a dict"),
  ],
)
def test_unusable_observations_name_their_key(change: Any, text: str):
  rows = step_checks.new_rows(_SPEC, 1)
  value = {'x': np.zeros(2), 'inner': {'z': 0}} | change
  with pytest.raises(step_checks.InvalidStep, match=f'gave an obs.* {text}'):
    step_checks.write_observation(value, _SPEC, rows, 0)


@pytest.mark.parametrize(
  ('dtype', 'good', 'bad'),
  [
    (np.int32, 2**31 - 1, 3_000_000_000),
    (np.int32, -(2**31), -(2**31) - 1),
    (np.int32, 0, 2**62),
    (np.uint8, 255, 256),
    (np.int8, -128, -129),
  ],
)
def test_integers_of_another_size_must_fit(dtype: Any, good: int, bad: int):
  spec = {'k': types.ArraySpec((2,), np.dtype(dtype))}
  rows = step_checks.new_rows(spec, 1)
  step_checks.write_observation({'k': [1, good]}, spec, rows, 0)
  assert rows['k'].tolist() == [[1, good]]
  text = f"^gave an observation for the key 'k' with {bad}, which is not from "
  with pytest.raises(step_checks.InvalidStep, match=text):
    step_checks.write_observation({'k': [1, bad]}, spec, rows, 0)


@pytest.mark.parametrize(
  ('space', 'dtype'),
  [
    (spaces.Box(0, 255, (2,), np.uint8), np.uint8),
    (spaces.Box(-np.inf, np.inf, (2,)), np.float32),
    (spaces.Box(-1e300, 1e300, (2,), np.float64), np.float32),
    (spaces.MultiBinary(2), np.int8),
  ],
)
def test_spaces_without_bounds(space: spaces.Space, dtype: Any):
  assert specs.find_bounds(space, np.dtype(dtype)) is None


@pytest.mark.parametrize(
  ('space', 'good', 'bad', 'text'),
  [
    # 0.1 is a little more as float32.
    (spaces.Box(-0.1, 0.1, (1,), np.float64), 0.1, 0.2, 'not from -0.1 to 0.1'),
    (spaces.Box(0, 9, (1,), np.uint8), 9, 10, 'not from 0 to 9'),
    (spaces.Discrete(3, start=-1), -1, 2, 'with 2, which is not from -1 to 1'),
    (spaces.MultiDiscrete([3], start=[5]), 7, 8, 'not from 5 to 7'),
    # As float32, which has no 2**40 - 1.
    (spaces.Discrete(2**40), 2**40 - 1, 2**41, 'not from 0.0 to 1'),
    (spaces.MultiDiscrete([2**40]), 2**40 - 1, 2**41, 'not from 0.0 to 1'),
  ],
)
def test_first_row_out_of_bounds(
  space: spaces.Space, good: float, bad: float, text: str
):
  dtype = specs.space_spec(space, '--x=Toy').dtype
  bounds = specs.find_bounds(space, dtype, 'k')
  assert bounds is not None
  values = np.array([good, good, bad, bad], dtype).reshape((4, *space.shape))
  assert bounds.violation(values[:2]) is None
  row, violation = bounds.violation(values)
  assert row == 2
  assert "for the key 'k' with" in violation and text in violation
