"""Epochs of minibatches over a device's share of a batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.networks import block_conv

# Makes an optimiser step on the samples of some indices, int32 `[N]`. Samples
# are unrolls (`base.select_unrolls` takes them by index) or single transitions
# of a flat batch.
StepFn = Callable[[Any, jax.Array], tuple[Any, base.UpdateOutput]]


def run(
  step: StepFn,
  state: Any,
  key: jax.Array,
  *,
  size: int,
  epochs: int,
  minibatches: int,
) -> tuple[Any, base.UpdateOutput]:
  """Makes `epochs` x `minibatches` steps, each epoch in another order.

  Under `base.AXIS`, each device shuffles its own `size` samples; the step takes
  the mean of the devices' gradients. `key` is the device's.

  Returns:
    the last state, and the mean of the steps' metrics; finite if all steps are.
  """
  orders = [
    jax.random.permutation(k, size).reshape((minibatches, -1))
    for k in jax.random.split(key, epochs)
  ]
  rows = jnp.concatenate(orders)
  with block_conv.for_loops():
    state, outputs = jax.lax.scan(step, state, rows)
  metrics = jax.tree.map(lambda x: jnp.mean(x, axis=0), outputs.metrics)
  return state, base.UpdateOutput(metrics, jnp.all(outputs.finite))


def refuse_pieces(config: types.Config) -> None:
  """Raises ValueError if `learner.micro_batches` would cut minibatches."""
  reason = f'{config.agent} has --config.minibatches instead'
  base.check_fixed(config, {'learner.micro_batches': 1}, reason)


def check(size: int, count: int, key: str = 'minibatches') -> None:
  """Raises ValueError if `count`, which is `key`, does not divide `size`."""
  if size % count:
    raise ValueError(
      f'--config.{key}={count} must divide the {size} samples that a training '
      'device gets of a batch.'
    )
