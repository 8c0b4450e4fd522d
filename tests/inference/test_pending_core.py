"""Tests of the core states of later unrolls."""

import chex
import numpy as np
import pytest

from seedrl_jax.inference import assembler


def _core(*values: int) -> list[np.ndarray]:
  """Returns two leaves of these values."""
  one = np.array(values, np.int32)
  return [one, np.stack([one, -one], axis=1).astype(np.float32)]


def test_next_unroll_starts_with_what_was_kept_for_it():
  pending = assembler.PendingCore(4, depth=1)
  pending.keep(np.array([2, 0]), np.array([1, 1]), _core(20, 30))
  result = pending.advance(np.array([0, 2]))
  chex.assert_trees_all_equal_shapes_and_dtypes(result, _core(30, 20))
  chex.assert_trees_all_equal(result, _core(30, 20))


def test_nothing_is_given_for_agents_that_keep_nothing():
  pending = assembler.PendingCore(2, depth=1)
  assert pending.advance(np.array([0, 1])) == []


def test_unroll_that_was_dropped_leaves_nothing_behind():
  pending = assembler.PendingCore(1, depth=2)
  env = np.array([0])
  for ahead in (0, 1, 2):
    pending.keep(env, np.array([ahead]), _core(ahead))
  # The environment disconnected; its new life keeps its own.
  for ahead in (0, 1, 2):
    pending.keep(env, np.array([ahead]), _core(10 + ahead))
  for expected in (11, 12):
    chex.assert_trees_all_equal(pending.advance(env), _core(expected))


@pytest.mark.parametrize('depth', [1, 2, 3])
def test_environments_out_of_step_equal_a_queue_each(depth: int):
  rng = np.random.default_rng(depth)
  pending = assembler.PendingCore(5, depth)
  queues: list[list[int]] = [[] for _ in range(5)]
  for t in range(200):
    env_id = rng.permutation(5)[: rng.integers(1, 6)]
    has_room = [len(queues[env]) < depth for env in env_id]
    keeps, advances = env_id[has_room], env_id[np.logical_not(has_room)]
    if len(keeps):
      values = 10 * t + keeps
      for env, value in zip(keeps.tolist(), values.tolist(), strict=True):
        queues[env].append(value)
      ahead = np.array([len(queues[env]) for env in keeps])
      pending.keep(keeps, ahead, _core(*values.tolist()))
    if len(advances):
      expected = [queues[env].pop(0) for env in advances]
      chex.assert_trees_all_equal(pending.advance(advances), _core(*expected))
