"""Teachers that play demonstrations: a checkpoint or a scripted policy.

A checkpoint of the student's agent and network plays as it is. Any other
teacher chooses only the actions: the student also runs, with zero
parameters, so that recorded outputs and LSTM states are zero and stacked frames
are right.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import action_masks, trust
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import playing
from seedrl_jax.runtime import progress, settings
from seedrl_jax.runtime import workdir as workdir_lib

# Maps a step to actions `[B, ...]`, which are ignored at LAST.
Policy = Callable[[types.EnvOutput], np.ndarray]

_WORKDIR_FLAG = '--teacher_workdir'


class Student(NamedTuple):
  """The agent that will learn, its run's config, and its environments."""

  agent: agents.Agent
  config: types.Config
  env_spec: types.EnvSpec


@dataclasses.dataclass(frozen=True)
class Teacher:
  """Who acts.

  Attributes:
    agent: acts for the worker; its core state and observations are those of the
      student, or a `Pair`.
    params: acting parameters of `agent`, on the host.
    description: a description of the teacher.
    is_student: whether outputs and core states are the student's own.
    wrap: wraps the environments' stream.
  """

  agent: agents.Agent
  params: agents.Params
  description: str
  is_student: bool = False
  wrap: Callable[[envs.EnvStream], envs.EnvStream] = lambda stream: stream


class Pair(NamedTuple):
  """The teacher's and the student's parameters, core states or observations.

  A scripted policy observes its own action.
  """

  teacher: types.Nest
  student: types.Nest


def student_part(nest: types.Nest) -> types.Nest:
  """Returns the student's core state or observation."""
  return nest.student if isinstance(nest, Pair) else nest


def from_checkpoint(
  student: Student,
  workdir: str,
  options: playing.PlayOptions,
  line: progress.ProgressLine,
) -> Teacher:
  """Makes a teacher of a run's checkpoint.

  `options` has the checkpoint's number and the allowed flags, to which those
  that the student's configuration needs are added.

  Raises ValueError if the checkpoint cannot be used.
  """
  directory = workdir_lib.Workdir(workdir, _WORKDIR_FLAG)
  student_flags = trust.flags_needed(student.config.to_dict())
  config = playing.read_config(
    directory, [*options.allowed, *student_flags], _WORKDIR_FLAG
  )
  # Its config.json also holds the name of a factory's environment.
  if config.env.id != student.env_spec.env_id:
    raise ValueError(
      f'{_WORKDIR_FLAG}={directory.path}: it was trained on '
      f'{config.env.id}, and this is to play {student.env_spec.env_id}; give '
      '--config.env.id or --config.env.factory as it was trained.'
    )
  # Even if networks are equal, optimisers may differ.
  agent, params, number = playing.load_player(
    directory, config, student.env_spec, options.checkpoint, line, _WORKDIR_FLAG
  )
  description = f'checkpoint {number} of {directory.path} ({config.agent})'
  if _network(config) == _network(student.config):
    return Teacher(student.agent, params, description, is_student=True)
  return _beside(student.agent, Teacher(agent, params, description))


def from_policy(student: Student, reference: str, seed: int) -> Teacher:
  """Makes a teacher of a scripted policy.

  `reference` is `module:function`; the function maps `env_spec` and `seed` to a
  `Policy`.

  Raises ValueError if there is no such function.
  """
  flag = f'--policy={reference}'
  policy = settings.load_function(flag, reference)(student.env_spec, seed)

  def act(
    params: Any, key: Any, step: types.AgentInput, core: Any, env_id: Any
  ) -> tuple[_Choice, Any]:
    del params, key, env_id
    return _Choice(step.observation.teacher), core

  teacher = Teacher(
    dataclasses.replace(student.agent, act=act, initial_core=lambda batch: ()),
    (),
    f'policy {reference}',
    wrap=lambda stream: ScriptedStream(stream, policy, flag),
  )
  return _beside(student.agent, teacher)


class ScriptedStream(playing.WrappedStream):
  """A stream whose observations are a `Pair` with a policy's actions."""

  def __init__(self, stream: envs.EnvStream, policy: Policy, flag: str):
    super().__init__(stream)
    action = stream.spec.action
    action_spec = types.ArraySpec(action.shape, action.dtype)
    observation = Pair(action_spec, stream.spec.observation)
    self.spec = stream.spec._replace(observation=observation)
    self._policy = policy
    self._flag = flag

  def recv(self) -> types.EnvOutput:
    """Raises ValueError if the policy's actions do not fit."""
    output = self._stream.recv()
    action = np.asarray(self._policy(output))
    spec = self.spec.action
    shape = (len(output.env_id), *spec.shape)
    low = np.reshape(spec.minimum, spec.shape)
    high = np.reshape(spec.maximum, spec.shape)
    if (
      action.shape != shape
      or action.dtype.kind not in ('iu' if spec.is_discrete else 'f')
      or not np.isfinite(action).all()
      or not ((action >= low) & (action <= high)).all()
    ):
      raise ValueError(
        f'{self._flag}: it must return {spec.dtype}{list(shape)} from '
        f'{low.tolist()} to {high.tolist()}; it returned '
        f'{action.dtype}{list(action.shape)}: {action.ravel()[:8]}.'
      )
    env_spec = self._stream.spec
    if env_spec.action_mask:
      # No loss can learn from an illegal action.
      legal = action_masks.is_legal(env_spec, output.observation, action)
      illegal = ~legal & (output.step_type != types.StepType.LAST)
      if illegal.any():
        raise ValueError(
          f'{self._flag}: it must return legal actions, which the observation '
          f'{env_spec.action_mask!r} says; it returned {action[illegal][0]}.'
        )
    pair = Pair(action.astype(spec.dtype), output.observation)
    return output._replace(observation=pair)


class _Choice(NamedTuple):
  """What a scripted policy puts out."""

  action: jax.Array


def _beside(student: agents.Agent, teacher: Teacher) -> Teacher:
  """Returns the student with the teacher's actions; other outputs are zero."""

  def act(
    params: Any, key: Any, step: types.AgentInput, core: Any, env_id: Any
  ) -> tuple[Any, Any]:
    choice, teacher_core = teacher.agent.act(
      params.teacher, key, step, core.teacher, env_id
    )
    step = step._replace(observation=student_part(step.observation))
    output, student_core = student.act(
      params.student, key, step, core.student, env_id
    )
    output = jax.tree.map(jnp.zeros_like, output)
    core = Pair(teacher_core, student_core)
    return output._replace(action=choice.action), core

  def initial_core(batch: int) -> agents.Core:
    return Pair(teacher.agent.initial_core(batch), student.initial_core(batch))

  zero_params = jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), student.params_shapes()
  )
  return dataclasses.replace(
    teacher,
    agent=dataclasses.replace(student, act=act, initial_core=initial_core),
    params=Pair(teacher.params, zero_params),
  )


def _network(config: types.Config) -> str:
  """Returns what outputs and core states depend on, to compare."""
  return json.dumps([config.agent, config.network.to_dict()], sort_keys=True)
