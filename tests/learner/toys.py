"""A toy agent to compute by hand: its parameters approach rewards.

With w for each entry of its parameters and r for an unroll's reward, the loss
is the mean over unrolls of weight * (w - r)^2 / 2, and its gradient
mean(weight * (w - r)). The learning rate is `LEARNING_RATE` x progress.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from seedrl_jax import types
from seedrl_jax.agents import base, sgd

SIZE = 64  # entries of the parameters; the gradient is shared among them
LEARNING_RATE = 0.25


def loss(
  params: base.Params,
  target_params: Any,
  batch: types.Batch,
  key: jax.Array,
  progress: Any,
) -> tuple[jax.Array, sgd.LossOutput]:
  """See `sgd.LossFn`; priorities are |w - r| of each unroll."""
  del target_params, key, progress
  error = params['w'][:, None] - batch.unroll.steps.reward[0]
  value = 0.5 * jnp.mean(batch.weight * jnp.sum(jnp.square(error), axis=0))
  return value, sgd.LossOutput({'w': params['w'][0]}, jnp.abs(error[0]))


def make_agent(size: int = SIZE, **changes: Any) -> base.Agent:
  """Returns the agent; `changes` are of its `sgd.Trainer`."""
  trainer = sgd.Trainer(**{
    'loss': loss,
    'optimizer': optax.sgd(LEARNING_RATE),
    'learning_rate': lambda progress: progress,
    **changes,
  })
  return base.Agent(
    init=lambda key: trainer.init({'w': jnp.zeros(size)}),
    acting_params=lambda state: state.params,
    initial_core=lambda batch: (),
    act=_no_act,
    update=trainer.update,
    trainer=trainer,
  )


def _no_act(*args: Any) -> Any:
  raise NotImplementedError('The learner does not act.')


def unroll_spec(steps: int = 2) -> types.Unroll:
  """Returns the specs of an unroll of `steps` steps."""

  def spec(dtype: type) -> types.ArraySpec:
    return types.ArraySpec((steps,), np.dtype(dtype))

  return types.Unroll(
    steps=types.Steps(
      observation=spec(np.uint8),
      reward=spec(np.float32),
      discount=spec(np.float32),
      step_type=spec(np.uint8),
      previous_action=spec(np.int32),
      agent_output=(),
      parameter_version=spec(np.int32),
    ),
    initial_core=(),
    env_id=types.ArraySpec((), np.dtype(np.int32)),
  )


def batch_of(rewards: Sequence[float]) -> types.Batch:
  """Returns a host batch with one unroll for each reward."""
  n = len(rewards)
  spec = unroll_spec()
  steps = jax.tree.map(
    lambda s: np.zeros((*s.shape, n), s.dtype),
    spec.steps,
    is_leaf=types.is_spec,
  )
  steps.reward[:] = np.asarray(rewards, np.float32)
  unroll = types.Unroll(steps, (), np.arange(n, dtype=np.int32))
  return types.Batch(unroll, np.ones(n, np.float32))
