"""Keeps training on-policy within a bound: masks what is older."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
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
    self, pieces: Sequence[types.Batch], versions: Sequence[np.ndarray]
  ) -> tuple[list[types.Batch], float]:
    """Returns the next batch, in pieces, and the share that it masked.

    `versions` are the oldest ones that acted in each piece's unrolls, `[W]`.
    Raises TooOldError if nothing was left of many batches.
    """
    old = [x < self._oldest for x in versions]
    self._oldest += self._updates_per_batch
    batches = [_mask(*x) for x in zip(pieces, old, strict=True)]
    share = float(np.concatenate(old).mean())
    self._num_dropped = self._num_dropped + 1 if share == 1.0 else 0
    if self._num_dropped == _MOST_DROPPED:
      raise TooOldError(
        f'All unrolls of {_MOST_DROPPED} batches were older than '
        f'--config.learner.max_lag={self._max_lag} allows; raise it.'
      )
    return batches, share


def _mask(batch: types.Batch, old: np.ndarray) -> types.Batch:
  """Returns a batch without transitions of the unrolls `old`, bool `[W]`."""
  if not old.any():
    return batch
  steps = batch.unroll.steps
  xp = jnp if isinstance(steps.step_type, jax.Array) else np
  step_type = xp.where(old, _FIRST, steps.step_type)
  steps = steps._replace(step_type=step_type)
  return batch._replace(unroll=batch.unroll._replace(steps=steps))
