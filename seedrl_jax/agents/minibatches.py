"""Epochs of minibatches over a device's share of a batch."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import ml_collections

from seedrl_jax.agents import base
from seedrl_jax.networks import block_conv


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
    minibatches: equal parts of the samples; see `check`.

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


def refuse_pieces(config: ml_collections.ConfigDict) -> None:
  """Checks that minibatches are not to be cut.

  Raises:
    ValueError: if `learner.micro_batches` says so.
  """
  if (pieces := config.learner.micro_batches) != 1:
    raise ValueError(
      f'--config.learner.micro_batches={pieces}: {config.agent} trains on '
      'whole minibatches; give 1, and more --config.minibatches.'
    )


def check(size: int, minibatches: int) -> None:
  """Checks that samples can be cut into equal minibatches.

  Raises:
    ValueError: if not; names the flag.
  """
  if size % minibatches:
    raise ValueError(
      f'--config.minibatches={minibatches} must divide the {size} samples that '
      'a training device gets of a batch.'
    )
