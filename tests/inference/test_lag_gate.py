"""Tests of the gate that keeps inference on-policy."""

import threading

import pytest

from seedrl_jax.inference import lag_gate
from seedrl_jax.replay import base as replay
from tests.patience import PATIENCE, wait_until

_WIDTH = 3


class _Queue:
  """Takes everything."""

  def allocate(self):
    return replay.Block(None, [], _WIDTH)

  def insert(self, block, priorities=None):
    assert block.width == _WIDTH


def _gate(max_lag, allocated, inserted, trained, batch_size=6):
  """Returns a gate after so many blocks and batches."""
  gate = lag_gate.LagGate(_Queue(), batch_size, max_lag)
  blocks = [gate.allocate() for _ in range(allocated)]
  for block in blocks[:inserted]:
    gate.insert(block)
  for _ in range(trained):
    gate.count_batch(0.0)
  return gate


def _start_waiting(gate):
  """Waits at the gate in a thread; returns what happens to it there."""
  seen = []

  def wait():
    try:
      gate.wait()
      seen.append('passed')
    except replay.StoreClosed:
      seen.append('closed')

  thread = threading.Thread(target=wait, daemon=True)
  thread.start()
  wait_until(lambda: not thread.is_alive() or gate._changed._waiters)
  return thread, seen


def _passes(gate):
  thread, _ = _start_waiting(gate)
  passed = not thread.is_alive()
  gate.close()
  thread.join(PATIENCE)
  return passed


def _check_waits_for_a_batch(gate, dropped_share):
  thread, seen = _start_waiting(gate)
  assert thread.is_alive()
  gate.count_batch(dropped_share)
  thread.join(PATIENCE)
  assert seen == ['passed']


@pytest.mark.parametrize(
  ('max_lag', 'allocated', 'inserted', 'trained', 'passes'),
  [
    # Two blocks make a batch. The third block is of batch 1.
    (0, 0, 0, 0, True),
    (0, 2, 1, 0, True),
    (0, 3, 2, 0, False),
    (0, 3, 2, 1, True),
    (1, 4, 2, 0, True),
    (1, 5, 4, 0, False),
    (1, 5, 4, 1, True),
    (2, 6, 4, 0, True),
    (2, 7, 6, 0, False),
    (2, 7, 6, 1, True),
    # Batch 1 is not complete: nothing would end a wait for it.
    (0, 5, 3, 1, True),
    (0, 9, 2, 0, False),
    (0, 9, 2, 1, True),
  ],
)
def test_waits_for_complete_batches_only(
  max_lag, allocated, inserted, trained, passes
):
  assert _passes(_gate(max_lag, allocated, inserted, trained)) == passes


def test_a_late_batch_counts_once():
  gate = lag_gate.LagGate(_Queue(), 6, 0, patience=0.0)
  for _ in range(2):
    gate.insert(gate.allocate())
  gate.allocate()
  # Counts as lost.
  gate.wait()
  # Comes all the same, too old by then.
  gate.count_batch(1.0)
  gate._patience = PATIENCE
  for _ in range(2):
    gate.insert(gate.allocate())
  # Of batch 2, which needs the version after batch 1.
  gate.allocate()
  _check_waits_for_a_batch(gate, dropped_share=0.5)


def test_a_wait_ends_with_a_batch():
  gate = _gate(0, allocated=3, inserted=2, trained=0)
  _check_waits_for_a_batch(gate, dropped_share=0.0)


def test_a_wait_ends_with_a_close():
  gate = _gate(0, allocated=3, inserted=2, trained=0)
  thread, seen = _start_waiting(gate)
  assert thread.is_alive()
  gate.close()
  thread.join(PATIENCE)
  assert seen == ['closed']


def test_counts_what_was_in_the_queue_before():
  gate = lag_gate.LagGate(_Queue(), 6, 1)
  gate.take_over(12)
  # Of batch 2, which needs the version after batch 0.
  gate.allocate()
  _check_waits_for_a_batch(gate, dropped_share=0.0)
