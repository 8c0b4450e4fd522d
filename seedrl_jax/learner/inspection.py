"""Measures the learner's network now and then, on a batch of the training."""

import time
from typing import Any

import jax

from seedrl_jax import types
from seedrl_jax.agents import base

# Observations of a measurement, if an unroll is no longer.
_MAX_OBSERVATIONS = 1024
# Of the time, for measurements.
_MAX_SHARE = 0.01


class Inspector:
  """Runs `Agent.measure` on a device when asked, for at most 1 % of the time.

  Only one thread calls it, except for `ask`.
  """

  def __init__(self, measure: Any):
    """`measure` is `Agent.measure`."""

    def run(params: base.Params, batch: types.Batch) -> dict[str, jax.Array]:
      unroll = jax.tree.map(lambda x: x[0], batch).unroll
      length, width = unroll.steps.reward.shape
      count = max(1, min(width, _MAX_OBSERVATIONS // length))
      steps = jax.tree.map(lambda x: x[:, :count], unroll.steps)
      core = jax.tree.map(lambda x: x[:count], unroll.initial_core)
      return measure(params, types.agent_input(steps), core)

    self._run = jax.jit(run)
    self._is_asked = True
    self._seconds = 0.0
    self._next = 0.0
    self.metrics: dict[str, float] = {}

  def compile(self, params: base.Params, batch: types.Batch) -> None:
    """Compiles, and measures how long it takes."""
    for _ in range(2):
      start = time.perf_counter()
      self._fetch(params, batch)
      self._seconds = time.perf_counter() - start

  def ask(self) -> None:
    """Wants a measurement of the next batch; any thread may call it."""
    self._is_asked = True

  def look(self, params: base.Params, batch: types.Batch) -> None:
    """Updates `metrics` if asked, unless the last time was too recent.

    `params` are acting parameters after the update on `batch`, which has a
    leading axis of 1; both are on one device.
    """
    now = time.perf_counter()
    if self._is_asked and now >= self._next:
      self._is_asked = False
      self._next = now + self._seconds / _MAX_SHARE
      self.metrics = self._fetch(params, batch)

  def _fetch(self, params: base.Params, batch: types.Batch) -> dict[str, float]:
    metrics = jax.device_get(self._run(params, batch))
    return {name: float(value) for name, value in metrics.items()}
