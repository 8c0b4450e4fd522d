"""Predicts the policy lag of a run with a queue, from its sizes alone.

An unroll is under way, in the queue, or on the devices ahead of the update. If
all these places are full, a step waits for as many batches as they hold; if the
learner is fast, for few. So the prediction is half of what they hold, and off
by as much as half of the queue and of what is prefetched.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import ml_collections

from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.run import layout

# Batches. The importance weights of older steps leave little to learn from.
_MOST = 8.0


class Prediction(NamedTuple):
  """The expected policy lag.

  Attributes:
    batches: mean over the steps.
    at_once: batches whose unrolls the environments begin at once.
    batch_size: the least, of all hosts, with a lag of at most 8; 0 if none has.
    needs_actors: whether it holds for as many actors as there is room for.
  """

  batches: float
  at_once: float
  batch_size: int
  needs_actors: bool

  def describe(self) -> str:
    """Returns words for the start-up line."""
    return f'expected policy lag {self.batches:.1f} batches{self._condition}'

  @property
  def _condition(self) -> str:
    return ' with all actors' if self.needs_actors else ''

  def warning(self) -> str:
    """Returns a sentence, empty if the lag is acceptable."""
    if self.batches <= _MOST:
      return ''
    fix = (
      f'--config.batch_size={self.batch_size} lowers that to {_MOST:g}'
      if self.batch_size
      else 'lower --config.learner.publish_period, --config.learner.prefetch '
      'or --config.replay.max_size'
    )
    return (
      f'Warning: this run may train off-policy{self._condition}. '
      f'{self.at_once:.3g} batches of unrolls begin at once, and steps are '
      f'about {self.batches:.0f} batches old when they are trained on; {fix}.'
    )


def predict(
  config: ml_collections.ConfigDict,
  shares: Sequence[layout.StreamShare],
  placement: placement_lib.Placement,
  lock_step: bool,
  num_training: int,
  updates_per_batch: int,
) -> Prediction | None:
  """Returns the expected lag; None for a replay, and without a shared batch.

  Args:
    config: of this process, and `shares`.
    num_training: training devices of all processes.
    updates_per_batch: optimiser steps.
  """
  if config.replay.sampler != 'fifo' or not placement.shares_batch:
    return None
  learner, size = config.learner, config.batch_size
  num_envs = sum(share.num_train for share in shares)
  # Waits that grow with the batch, in batches, and others, in unrolls.
  ahead = (learner.publish_period - 1) / updates_per_batch
  unrolls = num_envs
  if lock_step:
    # Acts only when nothing is left to train on.
    ahead -= 1
  else:
    ahead += learner.prefetch
    if config.replay.max_size is None:
      ahead += 2
    else:
      unrolls += config.replay.max_size
  batches = max(0.0, (unrolls / size + ahead) / 2)
  if learner.max_lag is not None:
    batches = min(batches, learner.max_lag)
  room, better = 2 * _MOST - ahead, 0
  if room > 0:
    # What an update must divide by.
    pieces = num_training * learner.micro_batches * config.get('minibatches', 1)
    better = math.ceil(placement.count * unrolls / room / pieces) * pieces
    if config.replay.max_size is not None and better > config.replay.max_size:
      better = 0
  return Prediction(
    batches, num_envs / size, better, any(share.is_remote for share in shares)
  )
