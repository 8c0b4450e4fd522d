"""Tests of environments in JAX of several tasks."""

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.device_envs import joining
from tests.device_envs import toys


@pytest.mark.parametrize('tasks', [None, [1, 0, 0, 2, 1], [2, 2, 2, 0, 0]])
def test_its_steps_are_those_of_environments_of_one_task(tasks):
  envs = [toys.make(share) for share in (0.2, 0.5, 1.0)]
  numbers = np.array([0, 1, 2, 0, 1] if tasks is None else tasks)
  joined = joining.join(envs, None if tasks is None else numbers)
  assert joined.spec.tasks == ('Toy',) * 3
  key, rng = jax.random.key(3), np.random.default_rng(4)
  state, output = joined.init(key, 5)
  keys = jax.random.split(key, 3)
  alone = {}
  for task in {*numbers.tolist()}:
    rows = np.flatnonzero(numbers == task)
    alone[task] = rows, *envs[task].init(keys[task], len(rows))
  step = jax.jit(joined.step)
  for _ in range(20):
    assert output.env_id.tolist() == [0, 1, 2, 3, 4]
    assert output.observation[types.TASK].tolist() == numbers.tolist()
    action = rng.integers(0, 3, 5, np.int32)
    for task, (rows, part, expected) in alone.items():
      for field in ('reward', 'discount', 'step_type'):
        actual = np.asarray(getattr(output, field))[rows]
        np.testing.assert_array_equal(actual, getattr(expected, field))
      for name, x in expected.observation.items():
        actual = np.asarray(output.observation[name])[rows]
        np.testing.assert_allclose(actual, x, rtol=1e-6)
      alone[task] = rows, *envs[task].step(part, action[rows])
    state, output = step(state, action)
