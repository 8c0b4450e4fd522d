"""Updates of parameters that other workers update, too."""

import math
import threading

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.learner import update
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, server, shared

# Of the running mean and deviation of the loss.
_LOSS_DECAY = 0.99
# Losses before any is an outlier.
_LEAST_LOSSES = 100
# Between two looks at whether other workers have caught up.
_PAUSE_SECONDS = 0.001


class OutlierFilter:
  """Finds losses far above their running mean (GORILA, arXiv 1507.04296).

  The mean and the variance are exponential averages of decay 0.99 (the paper
  gives none), over all losses, the outliers included.
  """

  def __init__(self, deviations: float):
    """`deviations` above the mean are too many; 0: never."""
    self._deviations = deviations
    self._mean = self._square = 0.0
    self._count = 0

  def finds(self, loss: float) -> bool:
    """Takes a loss; returns whether it is an outlier."""
    weight = 1.0 - _LOSS_DECAY**self._count if self._count else 1.0
    mean, square = self._mean / weight, self._square / weight
    bound = mean + self._deviations * math.sqrt(max(square - mean**2, 0.0))
    is_outlier = self._count >= _LEAST_LOSSES and loss > bound
    self._mean += (1.0 - _LOSS_DECAY) * (loss - self._mean)
    self._square += (1.0 - _LOSS_DECAY) * (loss**2 - self._square)
    self._count += 1
    return bool(self._deviations) and is_outlier


class AsynchronousStep(update.GradientStep):
  """Applies gradients to shared parameters.

  The training device keeps no agent state: the shared parameters hold it.
  """

  def __init__(self, agent: base.Agent, config: ml_collections.ConfigDict):
    """`config` is the section `asynchronous`.

    Raises:
      ValueError: if an update of the agent is not one gradient step.
    """
    if agent.trainer is None:
      raise ValueError(
        '--config.agent: an update of this agent is not one gradient step, '
        'which is all that asynchronous workers share; take r2d2 (DQN) or '
        'vtrace (A3C), or seedrl train.'
      )
    self.flat = flat.FlatTrainer(agent)
    self._outliers = OutlierFilter(config.outlier_deviations)
    self._gradient = jax.jit(self._compute)
    self._progress = 0.0
    self._is_stopping = threading.Event()

  def stop(self) -> None:
    """Ends an update that waits for other workers, from any thread."""
    self._is_stopping.set()

  def attach(
    self,
    parameters: shared.SharedMemory | server.ServerParameters,
    board: board_lib.Board,
    progress: float,
  ) -> None:
    """Sets what to update, at `progress` of the run."""
    self._shared, self._board = parameters, board
    self._progress = progress
    self._snapshot = parameters.read()

  def _compute(
    self,
    params: jax.Array,
    target: jax.Array,
    batch: types.Batch,
    key: jax.Array,
    before: jax.Array,
    progress: jax.Array,
  ) -> tuple[jax.Array, update.Output, jax.Array]:
    """Returns the flat gradient, the output and the next key.

    `before` is the progress at the last update.
    """
    batch, key = jax.tree.map(lambda x: x[0], (batch, key))
    batch = batch._replace(weight=batch.weight / jnp.max(batch.weight))
    # The keys of `update.Updater` on one device.
    next_key, key = jax.random.split(key)
    key = jax.random.fold_in(key, 0)
    state = self.flat.state(params, target, before)
    grads, metrics, priorities = self.flat.trainer.gradient(state, batch, key)
    leaves = [jnp.ravel(x) for x in jax.tree.leaves(grads)]
    metrics |= {'learning_rate': self.flat.trainer.learning_rate(progress)}
    packed = update.Metrics.pack(metrics)
    finite = jnp.isfinite(packed.values).all()
    if priorities is not None:
      priorities = priorities[None]
    output = update.Output(packed, finite, priorities)
    return jnp.concatenate(leaves), output, next_key[None]

  def __call__(
    self, state: update.LearnerState, batch: types.Batch, progress: float
  ) -> update.UpdateResult:
    while self._board.is_ahead() and not self._is_stopping.wait(_PAUSE_SECONDS):
      pass
    version = self._snapshot.version
    gradient, output, key = self._run(state, batch, progress)
    metrics = output.metrics.fetch()
    if output.finite and self._outliers.finds(metrics['total']):
      self._board.row.outlying += 1
    elif output.finite:
      try:
        self._shared.apply(
          np.asarray(gradient), version, metrics['learning_rate']
        )
      except flat.NonFiniteStep:
        output = output._replace(finite=jnp.bool_(False))
    self._snapshot = self._shared.read()
    self._progress = progress
    params = self.flat.acting_params(
      self._snapshot.params, np.float32(progress)
    )
    return update.UpdateResult(
      state._replace(key=key), output, params, self._snapshot.version - version
    )

  def _run(
    self, state: update.LearnerState, batch: types.Batch, progress: float
  ) -> tuple[jax.Array, update.Output, jax.Array]:
    return self._gradient(
      self._snapshot.params,
      self._snapshot.target,
      batch,
      state.key,
      np.float32(self._progress),
      np.float32(progress),
    )

  def device_state(self, state: update.LearnerState) -> update.LearnerState:
    return state._replace(agent=())

  def whole_state(self, state: update.LearnerState) -> update.LearnerState:
    version = self._board.version()
    agent = self.flat.unflatten(self._shared.vectors(), version, self._progress)
    return state._replace(agent=agent, step=jnp.int32(version))

  def rehearse(
    self, state: update.LearnerState, batch: types.Batch
  ) -> base.Params:
    gradient, _, _ = self._run(state, batch, 0.0)
    vectors = self._shared.vectors()
    self.flat.step(vectors.params, vectors.optimizer, np.asarray(gradient), 0.0)
    return self.flat.acting_params(vectors.params, np.float32(0.0))

  def metrics(self) -> dict[str, float]:
    return self._board.metrics()
