"""An update made of a loss, one optimiser step and a target network.

`make_trainer` makes it from the configuration's sections `optimizer` and
`learner`. Agents with an update of their own use `optimizers` alone.
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
from seedrl_jax.networks import pixels, popart


class LossOutput(NamedTuple):
  """A loss's auxiliary outputs.

  Attributes:
    metrics, priorities: see `base.UpdateOutput`.
    valid_share: share of valid transitions in a loss to which the others add 0.
      The trainer divides loss and gradient by its mean over pieces and devices:
      a mean over all becomes one over valid transitions.
    returns: of the value head, like the loss not yet divided; None without
      PopArt.
  """

  metrics: Mapping[str, jax.Array]
  priorities: jax.Array | None = None
  valid_share: jax.Array | float = 1.0
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
  metrics: dict[str, jax.Array]
  gradient: base.Params
  valid_share: jax.Array
  moments: pixels.NamedMoments
  returns: popart.BatchMoments | None


# A micro-batch, or a device's whole share, with its key.
_Piece = tuple[types.Batch, jax.Array]


@dataclasses.dataclass(frozen=True)
class Trainer:
  """Minimises a loss.

  Attributes:
    optimizer: for a learning rate of 1.
    learning_rate: progress of the run, in [0, 1] -> float32.
    target_update_period: in updates; 0 if there is no target network.
    target_update_rate: what the target network then takes of the parameters.
    clip_norm: gradient norm at which `optimizer` clips; 0 if it does not. Only
      used for metrics.
    project: maps updated params to the nearest allowed ones.
    moments: of the normalised pixels of an observation `[T, B, ...]`.
    absorb_returns: adds a batch's returns to PopArt's statistics; None without.
    micro_batches: equal pieces of a device's share, processed one by one to
      save memory.
    keeps_progress: whether the state has the run's progress, as for a schedule
      of exploration.
  """

  loss: LossFn
  optimizer: optax.GradientTransformation
  learning_rate: Callable[[jax.Array], jax.Array]
  target_update_period: int = 0
  target_update_rate: float = 1.0
  clip_norm: float = 0.0
  project: Callable[[base.Params], base.Params] = lambda params: params
  moments: Callable[[types.Nest], pixels.NamedMoments] = lambda observation: {}
  absorb_returns: (
    Callable[[base.Params, popart.BatchMoments], base.Params] | None
  ) = None
  micro_batches: int = 1
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
  def update(self) -> base.UpdateFn:
    """The update; in pieces if there are micro-batches."""
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
    loss, grads = of_valid(total.valid_share, (total.loss, total.gradient))
    metrics = optimizers.gradient_metrics(grads, self.clip_norm)
    return (
      grads,
      total.metrics | {'total': loss} | metrics,
      _concatenate(results),
    )

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
    pieces = [
      (piece, jax.random.fold_in(key, i))
      for i, piece in enumerate(_split(batch, self.micro_batches))
    ]
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
    total = _Total(
      loss,
      dict(output.metrics),
      grads,
      jnp.float32(output.valid_share),
      self.moments(batch.unroll.steps.observation),
      output.returns,
    )
    return total, output.priorities

  def _finish(
    self,
    state: TrainState,
    total: _Total,
    priorities: Sequence[jax.Array | None],
    progress: jax.Array,
  ) -> tuple[TrainState, base.UpdateOutput]:
    total = jax.tree.map(lambda x: x / self.micro_batches, total)
    total = base.mean_over_devices(total)
    loss, grads, returns = of_valid(
      total.valid_share, (total.loss, total.gradient, total.returns)
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
      {**total.metrics, **scalars},
      optimizers.all_finite(scalars),
      _concatenate(priorities),
    )


def of_valid(share: jax.Array, mean: types.Nest) -> types.Nest:
  """Returns means over valid transitions; see `LossOutput.valid_share`."""
  return optax.tree.scale(1.0 / jnp.maximum(share, 1e-8), mean)


def _concatenate(parts: Sequence[jax.Array | None]) -> jax.Array | None:
  arrays = [x for x in parts if x is not None]
  return jnp.concatenate(arrays) if arrays else None


def _split(batch: types.Batch, pieces: int) -> list[types.Batch]:
  chex.assert_is_divisible(batch.weight.shape[0], pieces)
  size = batch.weight.shape[0] // pieces
  return [
    base.select_unrolls(batch, slice(i * size, (i + 1) * size))
    for i in range(pieces)
  ]


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
