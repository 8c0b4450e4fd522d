"""The structures that actors, replay, agents and learner exchange.

NamedTuples of arrays: pytrees for JAX, plain tuples for remote actors without
it. Shapes are `[B, ...]` for a batched step and `[T, B, ...]` for a sequence.
"""

import enum
from typing import Any, NamedTuple

import numpy as np

# A pytree of arrays, or with one entry per array.
Nest = Any
Array = Any


# The version of steps for which no parameters of this run acted.
NO_VERSION = -1


class StepType(enum.IntEnum):
  """The position of a step in its episode, numbered as in dm_env."""

  FIRST = 0
  MID = 1
  LAST = 2


class ArraySpec(NamedTuple):
  """Shape (without batch dimensions) and dtype of one array."""

  shape: tuple[int, ...]
  dtype: np.dtype


class ActionSpec(NamedTuple):
  """The actions of an environment.

  Attributes:
    shape: without batch dimensions; `()` for one number.
    dtype: int32 for discrete actions, float32 for continuous ones.
    minimum, maximum: bounds of each number, in C order; -inf and inf if none.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  minimum: tuple[float, ...]
  maximum: tuple[float, ...]

  @property
  def is_discrete(self) -> bool:
    return bool(np.issubdtype(self.dtype, np.integer))

  @property
  def num_values(self) -> int:
    """A, if an action is one integer in `[0, A)`.

    Raises:
      ValueError: if it is not.
    """
    if self.shape or not self.is_discrete or any(self.minimum):
      raise ValueError(
        f'an action is {self.dtype}{list(self.shape)} from {self.minimum} to '
        f'{self.maximum}, not one discrete choice from 0 on'
      )
    return int(self.maximum[0]) + 1

  def sample(self, rng: np.random.Generator, *leading: int) -> np.ndarray:
    """Returns uniformly random actions `[*leading, ...]`."""
    shape = (*leading, *self.shape)
    low = np.reshape(self.minimum, self.shape)
    high = np.reshape(self.maximum, self.shape)
    if self.is_discrete:
      return rng.integers(low, high, shape, self.dtype, endpoint=True)
    # Unbounded numbers stay within a thousand.
    low, high = np.maximum(low, -1.0e3), np.minimum(high, 1.0e3)
    return rng.uniform(low, high, shape).astype(self.dtype)


def discrete(num_values: int) -> ActionSpec:
  """Returns the spec of actions that are int32 in `[0, num_values)`."""
  return ActionSpec((), np.dtype(np.int32), (0,), (num_values - 1,))


class EnvSpec(NamedTuple):
  """What an agent must know of its environments.

  Attributes:
    env_id: the environment's name, for messages.
    observation: nest of `ArraySpec`.
    action_repeat: frames per step.
    num_envs: training environments, with global ids `[0, num_envs)`.
    num_eval_envs: evaluation environments, with ids from `num_envs` on.
  """

  env_id: str
  observation: Nest
  action: ActionSpec
  action_repeat: int
  num_envs: int
  num_eval_envs: int


class EnvOutput(NamedTuple):
  """One step of each of B environments.

  Attributes:
    observation: nest of `[B, ...]` in the environment's dtypes.
    reward: float32 `[B]`, to learn from; 0 at FIRST.
    discount: float32 `[B]`, 0 if the episode terminated, else 1: a truncated
      episode still bootstraps.
    step_type: uint8 `[B]`, values of `StepType`.
    env_id: int32 `[B]`, index within the stream; unique in a batch.
  """

  observation: Nest
  reward: Array
  discount: Array
  step_type: Array
  env_id: Array


class AgentInput(NamedTuple):
  """A network's input for a step, `[B, ...]`, or an unroll, `[T, B, ...]`.

  Attributes:
    observation: nest of arrays in the environment's dtypes.
    reward: float32, the reward that came with the observation; 0 at FIRST.
    previous_action: per the `ActionSpec`, the action that led to the
      observation; 0 at FIRST.
    first: bool, whether an episode starts here. If so, the network resets its
      recurrent state and masks the previous action.
  """

  observation: Nest
  reward: Array
  previous_action: Array
  first: Array


class Steps(NamedTuple):
  """Recorded consecutive steps of B environments, `[T + 1, B]`.

  Attributes:
    observation, reward, discount, step_type: as in `EnvOutput`.
    previous_action: as in `AgentInput`.
    agent_output: the agent's NamedTuple for the same step.
    parameter_version: int32, the version that acted; `NO_VERSION` in
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
    steps: leaves `[T + 1, B, ...]`.
    initial_core: nest of `[B, ...]`, the core state *before* the first step.
    env_id: int32 `[B]`, global.
  """

  steps: Steps
  initial_core: Nest
  env_id: Array


class Batch(NamedTuple):
  """Unrolls and their loss weights.

  Attributes:
    weight: float32 `[B]`, importance weights of prioritized replay (Schaul et
      al. 2016, arXiv 1511.05952, section 3.4), largest 1 in the whole batch;
      all 1 if sampling was uniform.
  """

  unroll: Unroll
  weight: Array


def without_observation(steps: Steps) -> Steps:
  """Returns the steps with `()` for the observation.

  Priorities do not need it, and images are costly to transfer.
  """
  return steps._replace(observation=())


def agent_input(steps: Steps) -> AgentInput:
  """Returns the network's input for `steps`."""
  return AgentInput(
    observation=steps.observation,
    reward=steps.reward,
    previous_action=steps.previous_action,
    first=steps.step_type == StepType.FIRST,
  )
