"""Keeps training on-policy within a bound: masks what is older."""

from collections.abc import Sequence

import numpy as np

from seedrl_jax import types

_FIRST = np.uint8(types.StepType.FIRST)

# Batches without a recent unroll after which a run has failed; a server that is
# back may bring a few.
_MOST_DROPPED = 20


class TooOldError(RuntimeError):
  """Nothing was left of many batches."""


class LagFilter:
  """Masks unrolls in which parameters acted that are too old.

  All steps of such an unroll become FIRST, so that none is a transition.
  """

  def __init__(self, max_lag: int, version: int, updates_per_batch: int):
    """`version` is the learner's before it trains on the first batch.

    An unroll of batch n (from 0) needs the parameters after batch
    n - `max_lag` - 1 or later ones.
    """
    self._max_lag = max_lag
    self._updates_per_batch = updates_per_batch
    self._num_dropped = 0  # latest batches that were dropped wholly
    self._oldest = version - max_lag * updates_per_batch

  def __call__(
    self, pieces: Sequence[types.Batch]
  ) -> tuple[list[types.Batch], float]:
    """Returns the next batch, in pieces, and the share that it masked.

    Raises:
      TooOldError: if nothing was left of many batches.
    """
    masked = [_mask_older(piece, self._oldest) for piece in pieces]
    self._oldest += self._updates_per_batch
    batches, old = zip(*masked, strict=True)
    share = float(np.concatenate(old).mean())
    self._num_dropped = self._num_dropped + 1 if share == 1.0 else 0
    if self._num_dropped == _MOST_DROPPED:
      raise TooOldError(
        f'All unrolls of {_MOST_DROPPED} batches were older than '
        f'--config.learner.max_lag={self._max_lag} allows; raise it.'
      )
    return list(batches), share


def _mask_older(
  batch: types.Batch, version: int
) -> tuple[types.Batch, np.ndarray]:
  """Returns a batch without transitions of versions before `version`.

  Also returns which unrolls were older, bool `[W]`.
  """
  steps = batch.unroll.steps
  # The last step's action is of the next unroll.
  old = steps.parameter_version[:-1].min(axis=0) < version
  if old.any():
    step_type = np.where(old, _FIRST, steps.step_type)
    steps = steps._replace(step_type=step_type)
    batch = batch._replace(unroll=batch.unroll._replace(steps=steps))
  return batch, old
