"""The structures that actors, replay, agents and learner exchange.

NamedTuples of arrays: pytrees for JAX, plain tuples for remote actors without
it. Shapes are `[B, ...]` for a batched step and `[T, B, ...]` for a sequence.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ml_collections
import numpy as np

# A pytree of arrays, or with one entry per array.
Nest = Any
Array = Any
# A configuration, or a section of one.
Config = ml_collections.ConfigDict

# The key of the task in observations of a run of several tasks.
TASK = 'task'
# The version of steps for which no parameters of this run acted.
NO_VERSION = -1


class Explained(Exception):
  """An error whose message suffices for the user, without a traceback."""


class StepType(enum.IntEnum):
  """The position of a step in its episode, numbered as in dm_env."""

  FIRST = 0
  MID = 1
  LAST = 2


class ArraySpec(NamedTuple):
  """Shape (without batch dimensions), dtype and categories of one array.

  Categories are each number's possible values, in C order, if numbers are
  choices; `()` if they are quantities. None means unknown: earlier releases did
  not write them down.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  categories: tuple[range, ...] | None = ()


def is_spec(x: Any) -> bool:
  """Returns whether `x` is an `ArraySpec`, a leaf of a nest of these."""
  return isinstance(x, ArraySpec)


class ActionSpec(NamedTuple):
  """The actions of an environment; bounds are of each number, in C order."""

  shape: tuple[int, ...]  # without batch dimensions; () for one number
  dtype: np.dtype  # int32 if discrete, float32 if continuous or hybrid
  minimum: tuple[float, ...]  # -inf if unbounded
  maximum: tuple[float, ...]  # inf if unbounded
  # Of a hybrid action, which is one vector of all their numbers.
  parts: tuple['ActionSpec', ...] = ()

  @property
  def is_discrete(self) -> bool:
    return bool(np.issubdtype(self.dtype, np.integer))

  @property
  def kind(self) -> str:
    """'discrete' (one choice), 'multi_discrete', 'continuous' or 'hybrid'."""
    if self.parts:
      return 'hybrid'
    if not self.is_discrete:
      return 'continuous'
    return 'multi_discrete' if self.shape else 'discrete'

  @property
  def num_values(self) -> int:
    """A, if an action is one integer in `[0, A)`."""
    (maximum,) = self.maximum
    return int(maximum) + 1

  @property
  def sizes(self) -> tuple[int, ...]:
    """The number of values of each discrete choice, of all parts in order."""
    return tuple(int(self.maximum[i]) + 1 for i in self.choices)

  @property
  def choices(self) -> list[int]:
    """The indices of the discrete choices among the numbers, in C order."""
    is_choice = [
      part.is_discrete for part in self.parts or (self,) for _ in part.minimum
    ]
    return np.flatnonzero(is_choice).tolist()

  def split(self, actions: Array) -> list[tuple['ActionSpec', Array]]:
    """Splits actions `[..., N]`; returns the specs and numbers of all parts."""
    sections = []
    start = 0
    for part in self.parts:
      stop = start + len(part.minimum)
      sections.append((part, actions[..., start:stop]))
      start = stop
    return sections or [(self, actions)]

  def sample(self, rng: np.random.Generator, *leading: int) -> np.ndarray:
    """Returns uniformly random actions `[*leading, ...]`."""
    if self.parts:
      samples = [part.sample(rng, *leading) for part in self.parts]
      rows = [x.reshape((*leading, -1)) for x in samples]
      return np.concatenate(rows, axis=-1).astype(self.dtype)
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


def hybrid(parts: Sequence[ActionSpec]) -> ActionSpec:
  """Returns the spec of actions that have several parts, as one vector."""
  minimum = tuple(float(x) for part in parts for x in part.minimum)
  maximum = tuple(float(x) for part in parts for x in part.maximum)
  dtype = np.dtype(np.float32)
  return ActionSpec((len(minimum),), dtype, minimum, maximum, tuple(parts))


class StreamSpec(NamedTuple):
  """What one environment of a stream looks like."""

  observation: Nest  # nest of ArraySpec; dicts have sorted keys
  action: ActionSpec
  action_repeat: int  # frames per step
  name: str  # the environment's name, for messages
  parts: Nest | None = None  # the dict that became one vector, `observation`
  action_mask: str = ''  # its key in the observation; '' if there is none
  # Names of the environments of a run of several tasks. The observation's
  # `TASK`, int32, is an index into them.
  tasks: tuple[str, ...] = ()


class EnvSpec(NamedTuple):
  """All environments of a run: what each looks like, and how many there are."""

  stream: StreamSpec
  num_envs: int  # training; global ids [0, num_envs)
  num_eval_envs: int  # evaluation; global ids from num_envs on

  @property
  def env_id(self) -> str:
    """The environment's name, for messages."""
    return self.stream.name

  @property
  def observation(self) -> Nest:
    return self.stream.observation

  @property
  def action(self) -> ActionSpec:
    return self.stream.action

  @property
  def action_repeat(self) -> int:
    return self.stream.action_repeat


class EnvOutput(NamedTuple):
  """One step of each of B environments."""

  observation: Nest  # nest of [B, ...] in the environment's dtypes
  reward: Array  # float32 [B]; 0 at FIRST
  discount: Array  # float32 [B]; 0 if terminated, else 1 (also if truncated)
  step_type: Array  # uint8 [B], values of StepType
  env_id: Array  # int32 [B], index within the stream; unique in a batch


class DeviceEnv(NamedTuple):
  """Environments in JAX, a batch of them as pure functions.

  The contract of `EnvStream` holds: the first outputs are FIRST; LAST has the
  episode's final observation; what follows is FIRST with reward 0, whatever the
  action was. FIRST may repeat, until a reset is ready: no such pair is a
  transition.

  Attributes:
    spec: what one environment looks like.
    init: (key, n) -> state, `EnvOutput` `[n]`; `n` is static.
    step: (state, action `[n, ...]`) -> state, `EnvOutput` `[n]`. What is random
      is in the state.
  """

  spec: StreamSpec
  init: Callable[[Array, int], tuple[Nest, EnvOutput]]
  step: Callable[[Nest, Array], tuple[Nest, EnvOutput]]


class AgentInput(NamedTuple):
  """A network's input for a step, `[B, ...]`, or an unroll, `[T, B, ...]`.

  If `first`, the network resets its recurrent state and masks the previous
  action.
  """

  observation: Nest  # nest in the environment's dtypes
  reward: Array  # float32, came with the observation; 0 at FIRST
  previous_action: Array  # led to the observation; 0 at FIRST
  first: Array  # bool, whether an episode starts here


class Steps(NamedTuple):
  """Recorded consecutive steps of B environments, `[T + 1, B]`.

  Fields are as in `EnvOutput` and `AgentInput`.
  """

  observation: Nest
  reward: Array
  discount: Array
  step_type: Array
  previous_action: Array
  agent_output: Nest  # the agent's NamedTuple for the same step
  parameter_version: Array  # int32; NO_VERSION in demonstrations


class Unroll(NamedTuple):
  """B unrolls, laid out for training."""

  steps: Steps  # leaves [T + 1, B, ...]
  initial_core: Nest  # nest of [B, ...], from before the first step
  env_id: Array  # int32 [B], global


class Batch(NamedTuple):
  """Unrolls and their loss weights, float32 `[B]`.

  Weights are the importance weights of prioritized replay (Schaul et al. 2016,
  arXiv 1511.05952, section 3.4), divided by the whole batch's largest; all 1 if
  sampling was uniform.
  """

  unroll: Unroll
  weight: Array


def agent_input(steps: Steps) -> AgentInput:
  """Returns the network's input for `steps`."""
  return AgentInput(
    observation=steps.observation,
    reward=steps.reward,
    previous_action=steps.previous_action,
    first=steps.step_type == StepType.FIRST,
  )
