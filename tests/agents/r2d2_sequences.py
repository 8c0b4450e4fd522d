"""Random R2D2 sequences with an episode end at every relevant step."""

import numpy as np

from seedrl_jax import types
from seedrl_jax.agents.r2d2 import agent as r2d2
from seedrl_jax.configs import r2d2_base
from tests.agents import sequences

NUM_ACTIONS = 3
ENV_SPEC = types.EnvSpec(
  types.StreamSpec(
    observation=types.ArraySpec((2,), np.dtype('float32')),
    action=types.discrete(NUM_ACTIONS),
    action_repeat=1,
    name='toy',
  ),
  num_envs=6,
  num_eval_envs=2,
)


def config(**changes):
  """Returns R2D2's configuration with small networks and `changes`."""
  result = r2d2_base.get_config()
  result.unroll_length, result.burn_in = 4, 2
  result.network.hidden_sizes = (8,)
  result.network.lstm_size = 4
  result.network.head_hidden_size = 5
  result.loss.n_steps = 3
  result.update_from_flattened_dict(changes)
  return result


def random_steps(
  rng: np.random.Generator, length: int, batch: int
) -> types.Steps:
  """Returns `[length + 1, batch]` steps of `sequences.random_steps`."""
  steps = sequences.random_steps(rng, length, batch, NUM_ACTIONS)
  q_values = rng.normal(size=(length + 1, batch, NUM_ACTIONS)) * 4
  return steps._replace(
    agent_output=r2d2.AgentOutput(
      steps.agent_output.action, q_values.astype(np.float32)
    )
  )


def steps_with_ends(rng: np.random.Generator, length: int) -> types.Steps:
  """Returns two environments per step, whose episodes end at that step.

  One episode is terminated, one truncated; the next step is FIRST. Then one
  that starts at the first step, one that starts without a LAST, one with only
  two-step episodes, and eight random ones.
  """
  ends = [(t, end) for t in range(length + 1) for end in (0.0, 1.0)]
  steps = random_steps(rng, length, len(ends) + 11)
  step_type, discount = steps.step_type, steps.discount
  named = slice(len(ends) + 3)
  step_type[:, named], discount[:, named] = types.StepType.MID, 1.0
  for b, (t, end) in enumerate(ends):
    step_type[t, b], discount[t, b] = types.StepType.LAST, end
    step_type[t + 1 : t + 2, b] = types.StepType.FIRST
  step_type[0, len(ends)] = types.StepType.FIRST
  step_type[length // 2, len(ends) + 1] = types.StepType.FIRST
  step_type[::2, len(ends) + 2] = types.StepType.FIRST
  step_type[1::2, len(ends) + 2] = types.StepType.LAST
  first = step_type == types.StepType.FIRST
  return steps._replace(
    reward=steps.reward * ~first,
    previous_action=steps.previous_action * ~first,
  )
