"""An update's steps on one training device, as pure functions.

`update` runs them on all. They know of other devices only through means and
maxima over `AXIS`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax import flatten_util

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.learner import state as state_lib

AXIS = 'learner'


class Piece(NamedTuple):
  """What a device works through at once: unrolls, and a key for their loss."""

  batch: types.Batch
  key: jax.Array


class Total(NamedTuple):
  """Sums over a device's pieces."""

  loss: jax.Array
  metrics: dict[str, jax.Array]
  grads: base.Params


Update = Callable[
  [state_lib.LearnerState, types.Batch, jax.Array],
  tuple[state_lib.LearnerState, state_lib.UpdateOutput],
]


def chain(
  cut: Callable[..., tuple[Total, list[Piece]]],
  accumulate: Callable[..., tuple[Total, jax.Array | None]],
  finish: Callable[..., tuple[state_lib.LearnerState, state_lib.UpdateOutput]],
) -> Update:
  """Returns an update made of its three steps, of one device or of all."""

  def update(
    state: state_lib.LearnerState,
    batch: types.Batch,
    learning_rate: jax.Array,
  ) -> tuple[state_lib.LearnerState, state_lib.UpdateOutput]:
    total, pieces = cut(state, batch)
    priorities = []
    for piece in pieces:
      total, some = accumulate(total, state.params, state.target_params, piece)
      priorities.append(some)
    return finish(state, total, priorities, learning_rate)

  return update


def make_cut(
  agent: base.Agent, num_pieces: int
) -> Callable[[state_lib.LearnerState, types.Batch], tuple[Total, list[Piece]]]:
  """Returns what gives a total of nothing, and a batch in pieces."""

  def cut(
    state: state_lib.LearnerState, batch: types.Batch
  ) -> tuple[Total, list[Piece]]:
    _, loss_key = jax.random.split(state.key)
    loss_key = jax.random.fold_in(loss_key, jax.lax.axis_index(AXIS))
    largest = jax.lax.pmax(jnp.max(batch.weight), AXIS)
    batch = batch._replace(weight=batch.weight / largest)
    pieces = [
      Piece(piece, jax.random.fold_in(loss_key, i))
      for i, piece in enumerate(_split(batch, num_pieces))
    ]
    first = jax.eval_shape(
      _make_gradient(agent), state.params, state.target_params, pieces[0]
    )
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), first[0]), pieces

  return cut


def make_accumulate(
  agent: base.Agent,
) -> Callable[..., tuple[Total, jax.Array | None]]:
  """Returns what adds a piece's part to a total."""
  gradient = _make_gradient(agent)

  def accumulate(
    total: Total,
    params: base.Params,
    target_params: base.Params,
    piece: Piece,
  ) -> tuple[Total, jax.Array | None]:
    own, priorities = gradient(params, target_params, piece)
    return jax.tree.map(jnp.add, total, own), priorities

  return accumulate


def _make_gradient(
  agent: base.Agent,
) -> Callable[
  [base.Params, base.Params, Piece], tuple[Total, jax.Array | None]
]:
  """Returns what gives a piece's part of a total, and its priorities."""
  value_and_grad = jax.value_and_grad(agent.loss, has_aux=True)

  def gradient(
    params: base.Params, target_params: base.Params, piece: Piece
  ) -> tuple[Total, jax.Array | None]:
    (loss, output), grads = value_and_grad(
      params, target_params, piece.batch, piece.key
    )
    return Total(loss, dict(output.metrics), grads), output.priorities

  return gradient


def make_finish(
  agent: base.Agent,
  optimizer: optax.GradientTransformation,
  num_pieces: int,
  mean_over_devices: Callable[[types.Nest], types.Nest],
) -> Callable[..., tuple[state_lib.LearnerState, state_lib.UpdateOutput]]:
  """Returns what makes the next state of all devices' totals."""

  def finish(
    state: state_lib.LearnerState,
    total: Total,
    priorities: Sequence[jax.Array | None],
    learning_rate: jax.Array,
  ) -> tuple[state_lib.LearnerState, state_lib.UpdateOutput]:
    key, _ = jax.random.split(state.key)
    found = [x for x in priorities if x is not None]
    loss, metrics, grads = mean_over_devices(
      jax.tree.map(lambda x: x / num_pieces, total)
    )
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    updates = optax.tree.scale(learning_rate, updates)
    scalars = {
      'total': loss,
      'gradient_norm': optax.tree.norm(grads),
      'update_norm': optax.tree.norm(updates),
      'learning_rate': learning_rate,
    }
    # An optimiser can divide by zero though loss and gradient are finite.
    finite = jnp.isfinite(jnp.stack(list(scalars.values()))).all()
    params = agent.project(optax.apply_updates(state.params, updates))
    step = state.step + 1
    target_params = state.target_params
    if agent.target_update_period:
      target_params = optax.periodic_update(
        params, target_params, step, agent.target_update_period
      )
    new_state = state_lib.LearnerState(
      params, target_params, opt_state, step, key
    )
    # A bad update must not reach the checkpoint that the run leaves behind.
    new_state = jax.tree.map(
      lambda new, old: jnp.where(finite, new, old), new_state, state
    )
    # An explicit copy, as the next update donates the state's buffers: that
    # XLA gives two outputs of one value two buffers is not promised.
    published = jax.tree.map(jnp.copy, new_state.params)
    return new_state, state_lib.UpdateOutput(
      published,
      dict(metrics) | scalars,
      finite,
      jnp.concatenate(found) if found else None,
    )

  return finish


def _split(batch: types.Batch, pieces: int) -> list[types.Batch]:
  """Cuts a batch into equal pieces along its unrolls."""
  if pieces == 1:
    return [batch]
  chex.assert_is_divisible(batch.weight.shape[0], pieces)
  size = batch.weight.shape[0] // pieces

  def cut(i: int) -> types.Batch:
    part = slice(i * size, (i + 1) * size)
    unroll = batch.unroll
    return types.Batch(
      unroll=types.Unroll(
        steps=jax.tree.map(lambda x: x[:, part], unroll.steps),
        initial_core=jax.tree.map(lambda x: x[part], unroll.initial_core),
        env_id=unroll.env_id[part],
      ),
      weight=batch.weight[part],
    )

  return [cut(i) for i in range(pieces)]


def mean_over(
  devices: Sequence[jax.Device],
) -> Callable[[types.Nest], types.Nest]:
  """Returns what takes the mean of a nest over devices."""
  if len({device.process_index for device in devices}) == 1:
    return functools.partial(jax.lax.pmean, axis_name=AXIS)

  def mean(tree: types.Nest) -> types.Nest:
    # Between processes a message costs more than its bytes: one for all.
    flat, restore = flatten_util.ravel_pytree(tree)
    return restore(jax.lax.pmean(flat, AXIS))

  return mean
