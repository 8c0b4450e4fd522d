"""Tests of `seedrl_jax.envs.batch_index`."""

import numpy as np
import pytest

from seedrl_jax.envs import batch_index


@pytest.mark.parametrize(
  ('ids', 'consecutive'),
  [
    ([3, 4, 5], True),
    ([7], True),
    ([5, 4, 3], False),
    ([3, 5, 6], False),
    ([3, 5, 4, 6], False),
  ],
)
def test_slices_only_what_is_consecutive_and_ascending(ids, consecutive):
  env_id = np.array(ids, np.int32)
  values = np.arange(100, 110)
  index = batch_index.BatchIndex()
  for _ in range(2):  # The second time it is remembered.
    found = index(env_id)
    assert isinstance(found, slice) == consecutive
    np.testing.assert_array_equal(values[found], values[env_id])


def test_stays_right_when_it_has_seen_more_than_it_remembers():
  index = batch_index.BatchIndex()
  values = np.arange(1000)
  rng = np.random.default_rng(0)
  for _ in range(300):
    env_id = rng.permutation(1000)[:4].astype(np.int32)
    np.testing.assert_array_equal(values[index(env_id)], values[env_id])
