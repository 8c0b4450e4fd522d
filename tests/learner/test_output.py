"""Tests of the packed output of an update."""

import jax
import jax.numpy as jnp
import pytest

from seedrl_jax.learner import output as output_lib


@pytest.mark.parametrize(
  'metrics', [{}, {'b': 1.5, 'a': True, 'c': jnp.int32(3)}]
)
def test_metrics_come_back_by_name(metrics):
  packed = jax.jit(output_lib.Metrics.pack)(metrics)
  assert list(packed.fetch().items()) == sorted(metrics.items())


def test_a_metric_that_is_no_scalar_is_named():
  with pytest.raises(ValueError, match=r'metric td has the shape \(2,\)'):
    output_lib.Metrics.pack({'loss': 1.0, 'td': jnp.zeros(2)})
