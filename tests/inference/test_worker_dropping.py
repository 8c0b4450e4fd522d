"""Tests of what the worker does if environments disconnect."""

import numpy as np
import pytest

from tests.inference import toys, worker_bench


def _starts(
  monkeypatch: pytest.MonkeyPatch, dropped: dict[int, list[int]]
) -> dict[int, list[int]]:
  """Returns the first steps of each environment's unrolls.

  `dropped` maps batches to environments that disconnect before them; the last
  of environments 0 to 2 evaluates.
  """
  stream = toys.Stream(3, [[0, 1, 2]] * 15)

  def take_dropped() -> np.ndarray:
    return np.array(dropped.get(len(stream.outputs) - 1, []), np.int32)

  monkeypatch.setattr(stream, 'take_dropped', take_dropped)
  bench = worker_bench.Bench(stream, 2)
  bench.run()
  starts: dict[int, list[int]] = {0: [], 1: []}
  for env_id, start in sorted(bench.unrolls()):
    starts[bench.global_env_id.tolist().index(env_id)].append(start)
  return starts


def test_half_built_unrolls_of_who_went_away_are_dropped(
  monkeypatch: pytest.MonkeyPatch,
):
  # An unroll has five steps and shares the last with the next.
  assert _starts(monkeypatch, {}) == {0: [0, 4, 8], 1: [0, 4, 8]}
  # Environment 1's steps 4 and 5 begin no unroll; the next starts at 6.
  assert _starts(monkeypatch, {6: [1]}) == {0: [0, 4, 8], 1: [0, 6, 10]}


def test_environments_of_evaluation_have_no_unrolls_to_drop(
  monkeypatch: pytest.MonkeyPatch,
):
  assert _starts(monkeypatch, {6: [2]}) == {0: [0, 4, 8], 1: [0, 4, 8]}
