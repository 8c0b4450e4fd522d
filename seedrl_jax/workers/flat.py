"""A gradient step on flat vectors, which processes can share and divide.

The order is that of `jax.tree.leaves`. Except for the clip of the global norm,
an optimiser works elementwise, so its state for the flat parameters holds the
same numbers as its state for their nest, in the same order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import flatten_util

from seedrl_jax.agents import base, sgd


class Vectors(NamedTuple):
  """What training changes, flat."""

  params: np.ndarray  # float32 [P]
  target: np.ndarray  # float32 [P], of the target network; [0] if there is none
  optimizer: list[np.ndarray]  # leaves of the optimiser's state, [P] or scalars


class OptimizerStep:
  """An optimiser's step on a flat vector, or on a part of it."""

  def __init__(self, optimizer: optax.GradientTransformation, size: int):
    shapes = jax.eval_shape(
      optimizer.init, jax.ShapeDtypeStruct((size,), jnp.float32)
    )
    self.shapes, self._structure = jax.tree.flatten(shapes)
    self._optimizer = optimizer
    self._step = jax.jit(self._change)

  def _change(
    self,
    params: jax.Array,
    leaves: Sequence[jax.Array],
    gradient: jax.Array,
    learning_rate: jax.Array,
  ) -> tuple[jax.Array, list[jax.Array]]:
    state = jax.tree.unflatten(self._structure, leaves)
    updates, new = self._optimizer.update(gradient, state, params)
    changes = [
      after - before
      for after, before in zip(jax.tree.leaves(new), leaves, strict=True)
    ]
    return learning_rate * updates, changes

  def __call__(
    self,
    params: np.ndarray,
    leaves: Sequence[np.ndarray],
    gradient: np.ndarray,
    learning_rate: float,
  ) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns what to add to the parameters and to the optimiser's leaves."""
    change, changes = self._step(
      params, list(leaves), gradient, np.float32(learning_rate)
    )
    return np.asarray(change), [np.asarray(x) for x in changes]


class NonFiniteStep(ValueError):
  """A gradient step is infinite or NaN; nothing has changed."""


def step_in_place(
  step: OptimizerStep,
  params: np.ndarray,
  leaves: Sequence[np.ndarray],
  gradient: np.ndarray,
  learning_rate: float,
) -> None:
  """Makes a step by adding to arrays; keeps what others write meanwhile.

  Raises:
    NonFiniteStep: if it is not finite.
  """
  # JAX would read the arrays themselves, while others write to them.
  copies = [x.copy() for x in leaves]
  change, changes = step(params.copy(), copies, gradient, learning_rate)
  if not np.isfinite(change).all():
    raise NonFiniteStep('The gradient step is not finite.')
  np.add(params, change, out=params)
  for leaf, difference in zip(leaves, changes, strict=True):
    np.add(leaf, difference, out=leaf)


class FlatTrainer:
  """Converts between an agent's `sgd.TrainState` and vectors."""

  def __init__(self, agent: base.Agent):
    self.trainer: sgd.Trainer = agent.trainer
    self._agent = agent
    shapes = agent.state_shapes()
    self._optimizer_shapes = shapes.opt_state
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes.params)
    flat, self._unravel = flatten_util.ravel_pytree(zeros)
    self.size = flat.size
    self.target_size = flat.size if self.trainer.target_update_period else 0
    self.step = OptimizerStep(self.trainer.optimizer, self.size)
    self.acting_params = jax.jit(self._acting_params)

  def flatten(self, state: sgd.TrainState) -> Vectors:
    """Returns copies of a state's arrays."""
    leaves = [np.ravel(x) for x in jax.tree.leaves(state.opt_state)]
    optimizer = []
    for shape in self.step.shapes:
      parts = [leaves.pop(0)]
      while sum(x.size for x in parts) < max(shape.size, 1):
        parts.append(leaves.pop(0))
      optimizer.append(np.concatenate(parts).reshape(shape.shape))
    return Vectors(_ravel(state.params), _ravel(state.target_params), optimizer)

  def unflatten(
    self, vectors: Vectors, step: int, progress: float
  ) -> sgd.TrainState:
    """Returns the state, with arrays of the host."""
    shapes, structure = jax.tree.flatten(self._optimizer_shapes)
    flat = [np.ravel(x) for x in vectors.optimizer]
    leaves = []
    for shape in shapes:
      while not flat[0].size:
        flat.pop(0)
      leaves.append(flat[0][: shape.size].reshape(shape.shape))
      flat[0] = flat[0][shape.size :]
    state = self.state(*map(jnp.asarray, (*vectors[:2], np.float32(progress))))
    opt_state = jax.tree.unflatten(structure, leaves)
    return jax.device_get(
      state._replace(opt_state=opt_state, step=jnp.int32(step))
    )

  def state(
    self, params: jax.Array, target: jax.Array, progress: jax.Array
  ) -> sgd.TrainState:
    """Returns a state without optimiser and count, as a loss or acting needs.

    The parameters are projected.
    """
    return sgd.TrainState(
      params=self.trainer.project(self._unravel(params)),
      target_params=self._unravel(target) if self.target_size else (),
      opt_state=(),
      step=jnp.zeros((), jnp.int32),
      progress=progress if self.trainer.keeps_progress else (),
    )

  def _acting_params(self, params: jax.Array, progress: jax.Array) -> Any:
    target = jnp.zeros(self.target_size)
    return self._agent.acting_params(self.state(params, target, progress))


def _ravel(tree: base.Params) -> np.ndarray:
  leaves = [np.ravel(x) for x in jax.tree.leaves(tree)]
  return np.concatenate([*leaves, np.zeros(0)]).astype(np.float32)
