"""An update: a loss, one optimiser step and a target network.

`make_trainer` makes it from the configuration's sections `optimizer` and
`learner`. Agents with an update of their own may use `run_minibatches`, or
`optimizers` alone.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from seedrl_jax import types
from seedrl_jax.agents import base, optimizers
from seedrl_jax.networks import block_conv, pixels, popart


class LossOutput(NamedTuple):
  """A loss's auxiliary outputs; see also `base.UpdateOutput`."""

  metrics: Mapping[str, jax.Array]
  priorities: jax.Array | None = None
  # Share of valid transitions in a loss to which the others add 0. The trainer
  # divides loss and gradient by its mean over pieces and devices: a mean over
  # all becomes one over valid transitions.
  valid_share: jax.Array | float = 1.0
  # Of the value head, like the loss not yet divided; None without PopArt.
  returns: popart.BatchMoments | None = None


# Maps (params, target_params, batch, key, `TrainState.progress`) to the batch's
# mean loss, which must equal the mean of the losses of equal pieces.
LossFn = Callable[
  [base.Params, base.Params, types.Batch, jax.Array, types.Nest],
  tuple[jax.Array, LossOutput],
]


class TrainState(NamedTuple):
  """What training changes."""

  params: base.Params  # float32 leaves
  target_params: base.Params  # of the target network; () if none
  opt_state: optax.OptState
  step: jax.Array  # int32, updates so far
  # float32 in [0, 1], of the run, at the last update; () if nobody asks for it.
  progress: types.Nest = ()


class _Total(NamedTuple):
  """Sums over a device's pieces of a batch."""

  loss: jax.Array
  gradient: base.Params
  moments: pixels.NamedMoments
  output: LossOutput  # without priorities


# A micro-batch, or a device's whole share, with its key.
_Piece = tuple[types.Batch, jax.Array]


@dataclasses.dataclass(frozen=True)
class Trainer:
  """Minimises a loss."""

  loss: LossFn
  optimizer: optax.GradientTransformation  # for a learning rate of 1
  # Of the run's progress, in [0, 1].
  learning_rate: Callable[[jax.Array], jax.Array]
  target_update_period: int = 0  # in updates; 0 if there is no target network
  # What the target network then takes of the parameters.
  target_update_rate: float = 1.0
  # Gradient norm at which `optimizer` clips, for metrics; 0 if it does not.
  clip_norm: float = 0.0
  # Maps updated params to the nearest allowed ones.
  project: Callable[[base.Params], base.Params] = lambda params: params
  # Of the normalised pixels of an observation `[T, B, ...]`.
  moments: Callable[[types.Nest], pixels.NamedMoments] = lambda observation: {}
  # Adds a batch's returns to PopArt's statistics; None without.
  absorb_returns: (
    Callable[[base.Params, popart.BatchMoments], base.Params] | None
  ) = None
  # Equal pieces of a device's share, processed one by one to save memory.
  micro_batches: int = 1
  # Whether the state has the run's progress, as for exploration's schedule.
  keeps_progress: bool = False

  def init(self, params: base.Params) -> TrainState:
    """Returns the state before the first update."""
    return TrainState(
      params=params,
      target_params=params if self.target_update_period else (),
      opt_state=self.optimizer.init(params),
      step=jnp.zeros((), jnp.int32),
      progress=jnp.zeros(()) if self.keeps_progress else (),
    )

  @property
  def update(self) -> Any:
    """The `base.UpdateFn`; `base.UpdateInPieces` with micro-batches."""
    if self.micro_batches == 1:
      return self._update
    return base.UpdateInPieces(self._cut, self._accumulate, self._finish)

  def gradient(
    self, state: TrainState, batch: types.Batch, key: jax.Array
  ) -> tuple[base.Params, dict[str, jax.Array], jax.Array | None]:
    """Returns a device's gradient, its metrics and the unrolls' priorities."""
    pieces = [(batch, key)]
    if self.micro_batches > 1:
      _, pieces = self._cut(state, batch, key)
    total, priorities = self._gradient(state, pieces[0])
    results = [priorities]
    for piece in pieces[1:]:
      total, priorities = self._accumulate(total, state, piece)
      results.append(priorities)
    total = jax.tree.map(lambda x: x / self.micro_batches, total)
    output = total.output
    loss, grads = of_valid(output.valid_share, (total.loss, total.gradient))
    metrics = {**output.metrics, 'total': loss}
    metrics |= optimizers.gradient_metrics(grads, self.clip_norm)
    return grads, metrics, _concatenate(results)

  def _update(
    self,
    state: TrainState,
    batch: types.Batch,
    key: jax.Array,
    progress: jax.Array,
  ) -> tuple[TrainState, base.UpdateOutput]:
    total, priorities = self._gradient(state, (batch, key))
    return self._finish(state, total, [priorities], progress)

  def _cut(
    self, state: TrainState, batch: types.Batch, key: jax.Array
  ) -> tuple[_Total, list[_Piece]]:
    chex.assert_is_divisible(len(batch.weight), self.micro_batches)
    size = len(batch.weight) // self.micro_batches
    pieces = []
    for i in range(self.micro_batches):
      piece = base.select_unrolls(batch, slice(i * size, (i + 1) * size))
      pieces.append((piece, jax.random.fold_in(key, i)))
    shapes, _ = jax.eval_shape(self._gradient, state, pieces[0])
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), pieces

  def _accumulate(
    self, total: _Total, state: TrainState, piece: _Piece
  ) -> tuple[_Total, jax.Array | None]:
    gradient, priorities = self._gradient(state, piece)
    return jax.tree.map(jnp.add, total, gradient), priorities

  def _gradient(
    self, state: TrainState, piece: _Piece
  ) -> tuple[_Total, jax.Array | None]:
    value_and_grad = jax.value_and_grad(self.loss, has_aux=True)
    (loss, output), grads = value_and_grad(
      state.params, state.target_params, *piece, state.progress
    )
    batch, _ = piece
    moments = self.moments(batch.unroll.steps.observation)
    summed = output._replace(
      priorities=None, valid_share=jnp.float32(output.valid_share)
    )
    return _Total(loss, grads, moments, summed), output.priorities

  def _finish(
    self,
    state: TrainState,
    total: _Total,
    priorities: Sequence[jax.Array | None],
    progress: jax.Array,
  ) -> tuple[TrainState, base.UpdateOutput]:
    total = jax.tree.map(lambda x: x / self.micro_batches, total)
    total = base.mean_over_devices(total)
    output = total.output
    loss, grads, returns = of_valid(
      output.valid_share, (total.loss, total.gradient, output.returns)
    )
    learning_rate = self.learning_rate(progress)
    params, opt_state, scalars = optimizers.apply_gradient(
      self.optimizer, learning_rate, grads, state, self.clip_norm
    )
    scalars |= {'total': loss, 'learning_rate': learning_rate}
    params = pixels.absorb(self.project(params), total.moments)
    if self.absorb_returns is not None:
      params = self.absorb_returns(params, returns)
    step = state.step + 1
    target_params = state.target_params
    if self.target_update_period:
      new_target = params
      if (rate := self.target_update_rate) != 1.0:
        new_target = optax.incremental_update(params, target_params, rate)
      target_params = optax.periodic_update(
        new_target, target_params, step, self.target_update_period
      )
    new_progress = progress if self.keeps_progress else ()
    new_state = TrainState(params, target_params, opt_state, step, new_progress)
    return new_state, base.UpdateOutput(
      {**output.metrics, **scalars},
      optimizers.all_finite(scalars),
      _concatenate(priorities),
    )


def of_valid(share: jax.Array | float, mean: types.Nest) -> types.Nest:
  """Returns means over valid transitions; see `LossOutput.valid_share`."""
  return optax.tree.scale(1.0 / jnp.maximum(share, 1e-8), mean)


def _concatenate(parts: Sequence[jax.Array | None]) -> jax.Array | None:
  arrays = [x for x in parts if x is not None]
  return jnp.concatenate(arrays) if arrays else None


def make_trainer(config: types.Config, loss: LossFn, **changes: Any) -> Trainer:
  """Returns the trainer that the configuration asks for, with `changes`."""
  return Trainer(
    loss=loss,
    optimizer=optimizers.make(config),
    learning_rate=optimizers.learning_rate(config),
    micro_batches=config.learner.micro_batches,
    clip_norm=config.optimizer.clip_norm,
    **changes,
  )


# Makes an optimiser step on the samples of some indices, int32 `[N]`. Samples
# are unrolls (`base.select_unrolls` takes them by index) or single transitions
# of a flat batch.
StepFn = Callable[[Any, jax.Array], tuple[Any, base.UpdateOutput]]


def run_minibatches(
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


def check_divides(size: int, count: int, key: str = 'minibatches') -> None:
  """Raises ValueError if `count`, which is `key`, does not divide `size`."""
  if size % count:
    raise ValueError(
      f'--config.{key}={count} must divide the {size} samples that a training '
      'device gets of a batch.'
    )
