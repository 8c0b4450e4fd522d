"""Tests of the filter that drops what is too old."""

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.learner import prefetch
from tests.learner import toys


def _batch(versions):
  """Returns a batch whose steps, `[T + 1][W]`, have these versions."""
  batch = toys.batch_of([1.0] * len(versions[0]))
  shape = np.shape(versions)
  steps = batch.unroll.steps._replace(
    parameter_version=np.array(versions, np.int32),
    step_type=np.full(shape, types.StepType.MID, np.uint8),
  )
  return batch._replace(unroll=batch.unroll._replace(steps=steps))


def _dropped(batch):
  """Returns whether each unroll lost its transitions, if wholly."""
  step_type = batch.unroll.steps.step_type
  assert step_type.dtype == np.uint8
  first = step_type == types.StepType.FIRST
  assert (first.all(axis=0) == first.any(axis=0)).all()
  return first[0].tolist()


def _filter(keep, pieces):
  """Returns what `keep` makes of pieces with their oldest versions."""
  versions = [p.unroll.steps.parameter_version[:-1].min(axis=0) for p in pieces]
  return keep(pieces, versions)


def test_masks_unrolls_with_a_step_older_than_the_bound():
  # An agent that makes three updates of a batch, in its ninth.
  keep = prefetch.LagFilter(2, version=24, updates_per_batch=3)
  # The last step's action is of the next unroll, and does not count.
  pieces = [
    _batch([[18, 15, 24, 18], [18, 18, 15, 24], [0, 18, 24, 24]]),
    _batch([[24], [24], [24]]),
  ]
  before = [p.unroll.steps.step_type.copy() for p in pieces]
  masked, share = _filter(keep, pieces)
  assert [_dropped(p) for p in masked] == [[False, True, True, False], [False]]
  assert share == 2 / 5
  # A sample is read-only.
  for piece, step_type in zip(pieces, before, strict=True):
    np.testing.assert_array_equal(piece.unroll.steps.step_type, step_type)
  for old, new in zip(pieces, masked, strict=True):
    steps = new.unroll.steps._replace(step_type=old.unroll.steps.step_type)
    new = new._replace(unroll=new.unroll._replace(steps=steps))
    chex.assert_trees_all_equal(new, old)


def test_the_bound_moves_with_each_batch():
  keep = prefetch.LagFilter(1, version=5, updates_per_batch=1)
  shares = [
    _filter(keep, [_batch([[5, 6, 7], [5, 6, 7]])])[1] for _ in range(4)
  ]
  assert shares == [0.0, 0.0, 1 / 3, 2 / 3]


def test_a_run_that_drops_everything_fails():
  keep = prefetch.LagFilter(1, version=5, updates_per_batch=1)
  assert _filter(keep, [_batch([[5], [5]])])[1] == 0
  for _ in range(19):
    _filter(keep, [_batch([[0], [0]])])
  # Recent enough for the twentieth batch, and the next.
  assert _filter(keep, [_batch([[99], [99]])])[1] == 0
  for _ in range(19):
    _filter(keep, [_batch([[0], [0]])])
  with pytest.raises(prefetch.TooOldError, match=r'of 20 batches .*raise'):
    _filter(keep, [_batch([[0], [0]])])
