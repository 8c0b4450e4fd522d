"""Measures the learner's network from time to time, on a training batch."""

import time
from collections.abc import Callable

import jax

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.learner import update

# At most this many observations per measurement, but at least one unroll.
_MAX_OBSERVATIONS = 1024
# Measurements take at most this share of the time.
_MAX_SHARE = 0.01


class Inspector:
  """Runs `Agent.measure` on request, for at most 1 % of the time.

  One thread measures; another one requests measurements and takes them.
  """

  def __init__(
    self, measure: Callable[..., dict[str, jax.Array]], pieces: int = 1
  ):
    """`measure` is `Agent.measure`, of at most one of a batch's `pieces`."""

    def run(params: base.Params, batch: types.Batch) -> dict[str, jax.Array]:
      unroll = jax.tree.map(lambda x: x[0], batch).unroll
      length, width = unroll.steps.reward.shape
      count = max(1, min(width // pieces, _MAX_OBSERVATIONS // length))
      steps = jax.tree.map(lambda x: x[:, :count], unroll.steps)
      core = jax.tree.map(lambda x: x[:count], unroll.initial_core)
      return measure(params, types.agent_input(steps), core)

    self._run = jax.jit(run)
    self._is_requested = True
    self._next_time = 0.0
    self._metrics: dict[str, float] = {}

  def compile(self, params: base.Params, batch: types.Batch) -> None:
    """Compiles the measurement."""
    jax.block_until_ready(self._run(params, batch))

  def take(self) -> dict[str, float]:
    """Returns the metrics since the last call, {} if there are none.

    Requests a measurement on the next batch.
    """
    metrics, self._metrics = self._metrics, {}
    self._is_requested = True
    return metrics

  def maybe_measure(self, params: base.Params, batch: types.Batch) -> None:
    """Measures if requested and if the time limit allows it.

    Args:
      params: acting parameters after the update on `batch`, on one device.
      batch: its first shard has a leading axis of size 1 and is on that device.
    """
    start = time.perf_counter()
    if not self._is_requested or start < self._next_time:
      return
    self._is_requested = False
    # Cut only now: for each update it would cost as much as a small network.
    metrics = jax.device_get(self._run(params, update.first_shard(batch)))
    self._metrics = {name: float(value) for name, value in metrics.items()}
    end = time.perf_counter()
    self._next_time = end + (end - start) / _MAX_SHARE
