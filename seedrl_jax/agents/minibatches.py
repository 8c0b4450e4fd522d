"""Epochs of minibatches over a device's share of a batch."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from seedrl_jax.agents import base


class StepFn(Protocol):
  """Makes an optimiser step on the samples of some indices, int32 `[N]`.

  Samples are what `run` shuffles: unrolls (`base.select_unrolls` takes them by
  their indices), or single transitions of a flat batch. `state` is what the
  step changes.
  """

  def __call__(
    self, state: Any, rows: jax.Array
  ) -> tuple[Any, base.UpdateOutput]: ...


def run(
  step: StepFn,
  state: Any,
  key: jax.Array,
  *,
  size: int,
  epochs: int,
  minibatches: int,
  unroll: bool = False,
) -> tuple[Any, base.UpdateOutput]:
  """Makes `epochs` x `minibatches` steps, each epoch in another order.

  Under `base.AXIS`, each device shuffles its own samples; the step takes the
  mean of the devices' gradients.

  Args:
    step: see there.
    state: what the first step gets.
    key: the device's own.
    size: samples of the device; indices are below it.
    epochs: how often each sample is used.
    minibatches: equal parts of the samples.
    unroll: whether to unroll the loop (`is_slow_in_loop`).

  Returns:
    the last state, and the mean of the steps' metrics; finite if all steps are.

  Raises:
    ValueError: if the minibatches do not divide the samples.
  """
  check(size, minibatches)
  orders = [
    jax.random.permutation(k, size).reshape((minibatches, -1))
    for k in jax.random.split(key, epochs)
  ]
  rows = jnp.concatenate(orders)
  state, outputs = jax.lax.scan(step, state, rows, unroll=unroll or 1)
  metrics = jax.tree.map(lambda x: jnp.mean(x, axis=0), outputs.metrics)
  return state, base.UpdateOutput(metrics, jnp.all(outputs.finite))


def check(size: int, minibatches: int) -> None:
  """Checks that samples can be cut into equal minibatches.

  Raises:
    ValueError: if not; names the flag.
  """
  if size % minibatches:
    raise ValueError(
      f'--config.minibatches={minibatches} must divide the {size} samples of a '
      "batch, or of a training device's share of it."
    )


def is_slow_in_loop(init: Callable[[jax.Array], base.Params]) -> bool:
  """Returns whether a network is several times slower within a loop.

  XLA's convolutions are, on CPU. Unrolled, they compile for up to a second per
  step. `init` makes the network's parameters from a key.
  """
  if jax.default_backend() != 'cpu':
    return False
  return 'conv_general_dilated' in str(jax.make_jaxpr(init)(jax.random.key(0)))
