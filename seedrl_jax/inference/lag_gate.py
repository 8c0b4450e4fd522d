"""Keeps inference on-policy within a bound, by waits for the learner."""

import threading

import numpy as np

from seedrl_jax.inference import assembler
from seedrl_jax.replay import base as replay


class LagGate:
  """Writes to a queue, and lets unrolls begin only with recent parameters.

  The learner trains on blocks roughly in allocation order, so the allocation
  count identifies the batch. All streams of a host share a gate; any thread may
  call it.
  """

  def __init__(
    self,
    queue: assembler.BlockWriter,  # empty
    batch_size: int,  # unrolls that the learner takes from this queue at a time
    # Batches that the learner may train on between the parameters that act and
    # the batch that holds their steps.
    max_lag: int,
    # Seconds after which a complete batch counts as lost, with its server; None
    # means never.
    patience: float | None = None,
  ):
    self._queue = queue
    self._batch_size = batch_size
    self._max_lag = max_lag
    self._patience = patience
    self._changed = threading.Condition()
    # Numbers of unrolls.
    self._allocated = self._inserted = 0
    self._trained = 0  # batches
    self._closed = False

  def take_over(self, num_unrolls: int) -> None:
    """Counts unrolls that were in the queue before the first block."""
    with self._changed:
      self._allocated += num_unrolls
      self._inserted += num_unrolls

  def allocate(self) -> replay.Block:
    block = self._queue.allocate()
    with self._changed:
      self._allocated += block.width
    return block

  def insert(
    self, block: replay.Block, priorities: np.ndarray | None = None
  ) -> None:
    self._queue.insert(block, priorities)
    with self._changed:
      self._inserted += block.width

  def count_batch(self, dropped_share: float) -> None:
    """Counts a batch whose update is made and published.

    `dropped_share` is what was too old. A server that was late, or came back
    with what it had kept, brings batches that count already, or never will:
    they are too old as a whole, and counting them would let all later unrolls
    begin too early.
    """
    if dropped_share == 1.0 and self._patience is not None:
      return
    with self._changed:
      self._trained += 1
      self._changed.notify_all()

  def wait(self) -> None:
    """Waits until unrolls may begin in the newest block.

    It waits only for batches that are complete, which the learner takes without
    further steps: so environments that come late, or not at all, block nobody.

    Raises:
      StoreClosed: after `close`, also during the wait.
    """
    with self._changed:
      newest = (self._allocated - 1) // self._batch_size
      complete = self._inserted // self._batch_size
      needed = min(newest - self._max_lag, complete)
      self._changed.wait_for(
        lambda: self._closed or self._trained >= needed, self._patience
      )
      self._trained = max(self._trained, needed)
      if self._closed:
        raise replay.StoreClosed('The queue was closed during a wait.')

  def close(self) -> None:
    """Makes current and later waits raise `StoreClosed`."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()
