"""Tests how often the learner's network is measured, and on what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.learner import inspection
from tests.learner import toys


class _Clock:
  """A clock that moves only when a measurement is fetched."""

  def __init__(self, seconds):
    self.now, self.seconds = 100.0, seconds

  def measured(self, fetch):
    def run(tree):
      self.now += self.seconds
      return fetch(tree)

    return run


@pytest.fixture
def clock(monkeypatch):
  clock = _Clock(seconds=0.5)
  monkeypatch.setattr(inspection.time, 'perf_counter', lambda: clock.now)
  monkeypatch.setattr(jax, 'device_get', clock.measured(jax.device_get))
  return clock


def _batch(rewards):
  return jax.tree.map(lambda x: x[None], toys.batch_of(rewards))


def _sum_of_rewards(params, inputs, core):
  return {'sum': params + jnp.sum(inputs.reward)}


def test_measures_when_asked_but_for_a_hundredth_of_the_time(clock):
  inspector = inspection.Inspector(_sum_of_rewards)
  params, batch = jnp.float32(0.5), _batch([1.0, 2.0])
  reward = float(batch.unroll.steps.reward.sum())
  inspector.compile(params, batch)
  assert not inspector.metrics
  inspector.look(params, batch)
  assert inspector.metrics == {'sum': 0.5 + reward}
  # Not asked again.
  clock.now += 1000
  inspector.look(params + 1, batch)
  assert inspector.metrics == {'sum': 0.5 + reward}
  inspector.ask()
  inspector.look(params + 1, batch)
  assert inspector.metrics == {'sum': 1.5 + reward}
  # Asked too early: the last one began half a second ago, and took as long.
  for seconds, expected in ((48.0, 1.5), (2.0, 2.5)):
    clock.now += seconds
    inspector.ask()
    inspector.look(params + 2, batch)
    assert inspector.metrics == {'sum': expected + reward}


def test_measures_no_more_than_a_thousand_observations():
  shapes = []

  def measure(params, inputs, core):
    shapes.append(inputs.reward.shape)
    return {}

  for size in (2, 2000):
    batch = _batch([0.0] * size)
    inspection.Inspector(measure).look(jnp.zeros(()), batch)
  length = np.shape(batch.unroll.steps.reward)[1]
  assert shapes == [(length, 2), (length, 1024 // length)]
