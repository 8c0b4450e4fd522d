"""Random unrolls with terminations, truncations and resets."""

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents.vtrace import agent as vtrace
from seedrl_jax.inference import specs


def random_steps(
  rng: np.random.Generator,
  length: int,
  batch: int,
  num_actions: int = 3,
  features: int = 2,
) -> types.Steps:
  """Returns `[length + 1, batch]` steps of a stream of episodes.

  Rewards are up to a few units; some behaviour policies are far from uniform.
  Environment 0's first transition ends a truncated episode, environment 1's a
  terminated one; environment 2 restarts without a LAST.
  """
  shape = (length + 1, batch)
  step_type = np.full(shape, types.StepType.MID, np.uint8)
  discount = np.ones(shape, np.float32)
  for b in range(batch):
    for t in range(length + 1):
      forced = b < 2 and t == 1
      previous = step_type[t - 1, b] if t else types.StepType.MID
      if previous == types.StepType.LAST:
        step_type[t, b] = types.StepType.FIRST
      elif forced or rng.random() < 0.2:
        step_type[t, b] = types.StepType.LAST
        terminated = b == 1 if forced else rng.random() < 0.5
        discount[t, b] = 0.0 if terminated else 1.0
  if batch > 2:
    step_type[1:3, 2] = types.StepType.MID, types.StepType.FIRST
    discount[1:3, 2] = 1.0
  first = step_type == types.StepType.FIRST
  output = vtrace.AgentOutput(
    action=rng.integers(0, num_actions, shape).astype(np.int32),
    policy_logits=rng.normal(size=(*shape, num_actions)).astype(np.float32),
  )
  previous_action = np.zeros(shape, np.int32)
  previous_action[1:] = output.action[:-1]
  return types.Steps(
    observation=rng.normal(size=(*shape, features)).astype(np.float32),
    reward=(rng.normal(size=shape) * 2 * ~first).astype(np.float32),
    discount=discount,
    step_type=step_type,
    previous_action=previous_action * ~first,
    agent_output=output,
    parameter_version=np.zeros(shape, np.int32),
  )


def batch_of(steps: types.Steps, initial_core: types.Nest) -> types.Batch:
  """Returns the batch of a FIFO queue."""
  batch = steps.reward.shape[1]
  env_id = np.arange(batch, dtype=np.int32)
  return types.Batch(
    types.Unroll(steps, initial_core, env_id), np.ones(batch, np.float32)
  )


def pieces_of(batch: types.Batch, count: int) -> list[types.Batch]:
  """Cuts a batch into `count` equal pieces, on the host."""
  width = len(batch.weight) // count
  batch = jax.tree.map(np.asarray, batch)
  return [
    base.select_unrolls(batch, slice(i * width, (i + 1) * width))
    for i in range(count)
  ]


def random_batch(
  rng: np.random.Generator,
  agent: base.Agent,
  env_spec: types.EnvSpec,
  unroll_length: int,
  width: int,
) -> types.Batch:
  """Returns an agent's unrolls of random numbers, without episodes' ends."""
  spec = specs.unroll_spec(
    env_spec.stream,
    agent.num_transitions(unroll_length),
    specs.output_spec(agent, env_spec, agent.params_shapes()),
    specs.core_spec(agent),
  )

  def fill(x: np.ndarray) -> np.ndarray:
    if x.dtype == np.float32:
      return rng.uniform(-0.9, 0.9, x.shape).astype(x.dtype)
    return rng.integers(0, 256, x.shape, x.dtype) if x.dtype == np.uint8 else x

  batch = jax.tree.map(fill, specs.blank_batch(spec, width))
  steps = batch.unroll.steps
  steps = steps._replace(
    step_type=np.full_like(steps.step_type, types.StepType.MID),
    discount=np.ones_like(steps.discount),
  )
  return batch_of(steps, batch.unroll.initial_core)
