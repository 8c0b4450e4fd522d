"""An update made of a loss, one optimiser step and a target network."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp
import optax

from seedrl_jax import types
from seedrl_jax.agents import base


class LossOutput(NamedTuple):
  """A loss's auxiliary outputs; see `base.UpdateOutput`."""

  metrics: Mapping[str, jax.Array]
  priorities: jax.Array | None = None


class LossFn(Protocol):
  """Mean loss of a batch; must equal the mean of the losses of equal pieces."""

  def __call__(
    self,
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    key: jax.Array,
  ) -> tuple[jax.Array, LossOutput]: ...


class TrainState(NamedTuple):
  """What training changes."""

  params: base.Params  # float32 leaves
  target_params: base.Params  # of the target network; () if none
  opt_state: optax.OptState
  step: jax.Array  # int32, updates so far


class _Total(NamedTuple):
  """Sums over a device's pieces of a batch."""

  loss: jax.Array
  metrics: dict[str, jax.Array]
  grads: base.Params


class _Piece(NamedTuple):
  """A micro-batch, or a device's whole share."""

  batch: types.Batch
  key: jax.Array


@dataclasses.dataclass(frozen=True)
class Trainer:
  """Minimises a loss.

  Attributes:
    optimizer: for a learning rate of 1.
    learning_rate: progress of the run, in [0, 1] -> float32.
    target_update_period: in updates; 0 if there is no target network.
    project: maps updated params to the nearest allowed ones.
    micro_batches: equal pieces of a device's share, processed one by one to
      save memory.
  """

  loss: LossFn
  optimizer: optax.GradientTransformation
  learning_rate: Callable[[jax.Array], jax.Array]
  target_update_period: int = 0
  project: Callable[[base.Params], base.Params] = lambda params: params
  micro_batches: int = 1

  def init(self, params: base.Params) -> TrainState:
    """Returns the state before the first update."""
    return TrainState(
      params=params,
      target_params=params if self.target_update_period else (),
      opt_state=self.optimizer.init(params),
      step=jnp.zeros((), jnp.int32),
    )

  @property
  def update(self) -> base.UpdateFn:
    """The update; in pieces if there are micro-batches."""
    update = base.UpdateInPieces(self._cut, self._accumulate, self._finish)
    return update if self.micro_batches > 1 else update.__call__

  def _cut(
    self, state: TrainState, batch: types.Batch, key: jax.Array
  ) -> tuple[_Total, list[_Piece]]:
    pieces = [
      _Piece(piece, jax.random.fold_in(key, i))
      for i, piece in enumerate(_split(batch, self.micro_batches))
    ]
    shapes, _ = jax.eval_shape(self._gradient, state, pieces[0])
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), pieces

  def _accumulate(
    self, total: _Total, state: TrainState, piece: _Piece
  ) -> tuple[_Total, jax.Array | None]:
    own, priorities = self._gradient(state, piece)
    return jax.tree.map(jnp.add, total, own), priorities

  def _gradient(
    self, state: TrainState, piece: _Piece
  ) -> tuple[_Total, jax.Array | None]:
    value_and_grad = jax.value_and_grad(self.loss, has_aux=True)
    (loss, output), grads = value_and_grad(
      state.params, state.target_params, piece.batch, piece.key
    )
    return _Total(loss, dict(output.metrics), grads), output.priorities

  def _finish(
    self,
    state: TrainState,
    total: _Total,
    priorities: Sequence[jax.Array | None],
    progress: jax.Array,
  ) -> tuple[TrainState, base.UpdateOutput]:
    loss, metrics, grads = base.mean_over_devices(
      jax.tree.map(lambda x: x / self.micro_batches, total)
    )
    learning_rate = self.learning_rate(progress)
    updates, opt_state = self.optimizer.update(
      grads, state.opt_state, state.params
    )
    updates = optax.tree.scale(learning_rate, updates)
    scalars = {
      'total': loss,
      'gradient_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
      'learning_rate': learning_rate,
    }
    # An optimiser can divide by zero though loss and gradient are finite.
    finite = jnp.isfinite(jnp.stack(list(scalars.values()))).all()
    params = self.project(optax.apply_updates(state.params, updates))
    step = state.step + 1
    target_params = state.target_params
    if self.target_update_period:
      target_params = optax.periodic_update(
        params, target_params, step, self.target_update_period
      )
    found = [x for x in priorities if x is not None]
    return (
      TrainState(params, target_params, opt_state, step),
      base.UpdateOutput(
        {**metrics, **scalars},
        finite,
        jnp.concatenate(found) if found else None,
      ),
    )


def _split(batch: types.Batch, pieces: int) -> list[types.Batch]:
  if pieces == 1:
    return [batch]
  chex.assert_is_divisible(batch.weight.shape[0], pieces)
  size = batch.weight.shape[0] // pieces
  parts = [slice(i * size, (i + 1) * size) for i in range(pieces)]
  return [columns(batch, part) for part in parts]


def columns(batch: types.Batch, part: slice) -> types.Batch:
  """Returns some unrolls of a batch."""
  unroll = batch.unroll
  return types.Batch(
    unroll=types.Unroll(
      steps=jax.tree.map(lambda x: x[:, part], unroll.steps),
      initial_core=jax.tree.map(lambda x: x[part], unroll.initial_core),
      env_id=unroll.env_id[part],
    ),
    weight=batch.weight[part],
  )
