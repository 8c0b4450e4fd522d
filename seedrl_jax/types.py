"""The few structures that every room passes to its neighbours.

Everything here is a NamedTuple of arrays, so that it is a pytree wherever JAX
is present and a plain tuple where it is not (remote actors). Shapes are
written `[B, ...]` for one batched step and `[T, B, ...]` for time-major
sequences; `...` in an observation stands for the environment's own shape.
"""

import enum
from typing import Any, NamedTuple

import numpy as np

# A nest of arrays (or of anything that has one entry per array): dicts, tuples
# and NamedTuples, as `jax.tree` sees them.
Nest = Any
Array = Any


# The parameter version of steps that no parameters of the run acted in.
NO_VERSION = -1


class StepType(enum.IntEnum):
  """Where in its episode a step stands, numbered as in dm_env."""

  FIRST = 0
  MID = 1
  LAST = 2


class ArraySpec(NamedTuple):
  """Shape (without batch dimensions) and dtype of one array."""

  shape: tuple[int, ...]
  dtype: np.dtype


class ActionSpec(NamedTuple):
  """What one action of an environment is.

  Attributes:
    shape: without batch dimensions; `()` for one number.
    dtype: int32 for discrete actions, float32 for continuous ones.
    minimum: the least value of each of the action's numbers, in C order;
      -inf if there is none.
    maximum: the largest, or inf.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  minimum: tuple[float, ...]
  maximum: tuple[float, ...]

  @property
  def is_discrete(self) -> bool:
    """Whether the action's numbers are integers."""
    return bool(np.issubdtype(self.dtype, np.integer))

  @property
  def num_values(self) -> int:
    """A, if an action is one integer in `[0, A)`.

    Raises:
      ValueError: if it is anything else.
    """
    if self.shape or not self.is_discrete or any(self.minimum):
      raise ValueError(
        f'an action is {self.dtype}{list(self.shape)} from {self.minimum} to '
        f'{self.maximum}, not one discrete choice from 0 on'
      )
    return int(self.maximum[0]) + 1

  def sample(self, rng: np.random.Generator, *leading: int) -> np.ndarray:
    """Returns random actions `[*leading, ...]`, evenly from what is allowed."""
    shape = (*leading, *self.shape)
    low = np.reshape(self.minimum, self.shape)
    high = np.reshape(self.maximum, self.shape)
    if self.is_discrete:
      return rng.integers(low, high, shape, self.dtype, endpoint=True)
    # What has no bounds stays within a thousand.
    low, high = np.maximum(low, -1.0e3), np.minimum(high, 1.0e3)
    return rng.uniform(low, high, shape).astype(self.dtype)


def discrete(num_values: int) -> ActionSpec:
  """Returns the spec of actions that are int32 in `[0, num_values)`."""
  return ActionSpec((), np.dtype(np.int32), (0,), (num_values - 1,))


class EnvSpec(NamedTuple):
  """What an agent must know of its environments.

  Attributes:
    env_id: the environment's name, for messages.
    observation: nest of `ArraySpec`, as `EnvOutput.observation` has it.
    action: what the environment takes.
    action_repeat: frames that one step takes.
    num_envs: training environments; global ids `[0, num_envs)`.
    num_eval_envs: evaluation environments; global ids from `num_envs` on.
  """

  env_id: str
  observation: Nest
  action: ActionSpec
  action_repeat: int
  num_envs: int
  num_eval_envs: int


class EnvOutput(NamedTuple):
  """What `EnvStream.recv` gives: one step of each of B environments.

  Attributes:
    observation: nest of `[B, ...]` in the environment's dtypes.
    reward: float32 `[B]`, what the agent learns from; 0 at FIRST.
    discount: float32 `[B]`, 0 where the episode terminated, else 1 (so a
      truncated episode still bootstraps).
    step_type: uint8 `[B]`, values of `StepType`.
    env_id: int32 `[B]`, which of the stream's environments; unique in a batch.
  """

  observation: Nest
  reward: Array
  discount: Array
  step_type: Array
  env_id: Array


class AgentInput(NamedTuple):
  """What a network sees of a step, `[B, ...]`, or of an unroll, `[T, B, ...]`.

  Attributes:
    observation: nest of arrays in the environment's dtypes.
    reward: float32, reward that came with the observation; 0 at FIRST.
    previous_action: as the environment's `ActionSpec` says, the action that led
      to the observation; 0 at FIRST.
    first: bool, whether an episode starts here: recurrent state is zeroed
      before the step is processed, and the previous action is masked.
  """

  observation: Nest
  reward: Array
  previous_action: Array
  first: Array


class Steps(NamedTuple):
  """What is recorded of consecutive steps of B environments, `[T + 1, B]`.

  Attributes:
    observation, reward, discount, step_type: as in `EnvOutput`.
    previous_action: as in `AgentInput`.
    agent_output: the agent's own NamedTuple for the same step: `action` and
      what learning needs from behaviour time.
    parameter_version: int32, which published parameters acted; `NO_VERSION` in
      demonstrations.
  """

  observation: Nest
  reward: Array
  discount: Array
  step_type: Array
  previous_action: Array
  agent_output: Nest
  parameter_version: Array


class Unroll(NamedTuple):
  """B unrolls, laid out for training.

  Attributes:
    steps: `Steps` with leading `[T + 1, B]`.
    initial_core: nest of `[B, ...]`, the core state *before* the first step.
    env_id: int32 `[B]`, the global id of the environment.
  """

  steps: Steps
  initial_core: Nest
  env_id: Array


class Batch(NamedTuple):
  """What a loss gets: unrolls and how much each counts.

  Attributes:
    unroll: `Unroll` of B unrolls.
    weight: float32 `[B]`, what to multiply an unroll's loss by: the importance
      weights of prioritized replay (Schaul et al. 2016, arXiv 1511.05952,
      section 3.4), of which the whole batch's largest is 1; all 1 where
      unrolls were drawn evenly.
  """

  unroll: Unroll
  weight: Array


def without_observation(steps: Steps) -> Steps:
  """Returns the steps with `()` for the observation.

  Priorities do not need it: pictures need not travel to a device for them.
  """
  return steps._replace(observation=())


def agent_input(steps: Steps) -> AgentInput:
  """Returns what the network saw in `steps`."""
  return AgentInput(
    observation=steps.observation,
    reward=steps.reward,
    previous_action=steps.previous_action,
    first=steps.step_type == StepType.FIRST,
  )
