"""Tests how often the learner's network is measured, and on what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.learner import learner as learner_lib
from tests.learner import toys


class _Clock:
  """A clock that moves only when a measurement is fetched."""

  def __init__(self):
    self.now, self.seconds = 100.0, 0.5

  def advance_on(self, fetch):
    def run(tree):
      self.now += self.seconds
      return fetch(tree)

    return run


@pytest.fixture
def clock(monkeypatch):
  clock = _Clock()
  monkeypatch.setattr(learner_lib.time, 'perf_counter', lambda: clock.now)
  monkeypatch.setattr(jax, 'device_get', clock.advance_on(jax.device_get))
  return clock


def _batch(rewards):
  return jax.tree.map(lambda x: x[None], toys.batch_of(rewards))


def test_measures_on_request_for_at_most_one_percent_of_the_time(clock):
  def measure(params, inputs, core):
    return {'sum': params + jnp.sum(inputs.reward)}

  inspector = learner_lib.Inspector(measure)
  batch = _batch([1.0, 2.0])
  reward = float(batch.unroll.steps.reward.sum())

  def metrics_after(seconds, params):
    clock.now += seconds
    inspector.maybe_measure(jnp.float32(params), batch)
    return inspector.take()

  inspector.compile(jnp.float32(0.0), batch)
  # The first needs no request.
  inspector.maybe_measure(jnp.float32(1.0), batch)
  clock.now += 1000
  inspector.maybe_measure(jnp.float32(2.0), batch)
  assert inspector.take() == {'sum': 1.0 + reward}
  assert metrics_after(0, 3.0) == {'sum': 3.0 + reward}
  # It took 0.5 s, so the next one comes 50 s later.
  assert metrics_after(49, 4.0) == {}
  clock.seconds = 0.1
  assert metrics_after(2, 5.0) == {'sum': 5.0 + reward}
  assert metrics_after(9, 6.0) == {}
  assert metrics_after(2, 7.0) == {'sum': 7.0 + reward}


@pytest.mark.parametrize(
  ('size', 'pieces', 'expected'), [(2, 1, 2), (8, 4, 2), (2000, 1, 512)]
)
def test_measures_no_more_than_a_piece_or_a_thousand_observations(
  size, pieces, expected
):
  shapes = []

  def measure(params, inputs, core):
    shapes.append(inputs.reward.shape)
    return {}

  batch = _batch([0.0] * size)
  assert np.shape(batch.unroll.steps.reward)[1] == 2
  inspector = learner_lib.Inspector(measure, pieces)
  inspector.maybe_measure(jnp.zeros(()), batch)
  assert shapes == [(2, expected)]
