"""Teachers that play demonstrations: a checkpoint or a scripted policy.

A checkpoint of the student's agent and network plays as it is. Any other
teacher chooses only the actions: the student runs beside it with zero
parameters, so that recorded outputs and LSTM states are zero and stacked frames
are right.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import trust
from seedrl_jax.evaluation import playing
from seedrl_jax.runtime import progress, settings
from seedrl_jax.runtime import workdir as workdir_lib

# Maps a step to actions `[B, ...]`, which are ignored at LAST.
Policy = Callable[[types.EnvOutput], np.ndarray]

_WORKDIR_FLAG = '--teacher_workdir'


class Student(NamedTuple):
  """The agent that will learn, its run's config, and its environments."""

  agent: agents.Agent
  config: ml_collections.ConfigDict
  env_spec: types.EnvSpec


@dataclasses.dataclass(frozen=True)
class Teacher:
  """Who acts.

  Attributes:
    agent: acts for the worker; unless it is the student itself, its core state
      and observations end with the student's.
    params: acting parameters of `agent`, on the host.
    made_by: a description of the teacher.
    is_student: whether outputs and core states are the student's own.
    wrap: wraps the environments' stream.
  """

  agent: agents.Agent
  params: agents.Params
  made_by: str
  is_student: bool = False
  wrap: Callable[[envs.EnvStream], envs.EnvStream] = lambda stream: stream


class _Pair(NamedTuple):
  """The teacher's and the student's parameters, or core states."""

  teacher: types.Nest
  student: types.Nest


class ScriptedObservation(NamedTuple):
  """An observation with a policy's action for it."""

  action: types.Array
  observation: types.Nest


def from_checkpoint(
  student: Student,
  workdir: str,
  options: playing.PlayOptions,
  line: progress.ProgressLine,
) -> Teacher:
  """Makes a teacher of a run's checkpoint.

  `options` has the checkpoint's number and the allowed flags, to which those
  that the student's configuration needs are added.

  Raises:
    ValueError: if the checkpoint cannot be used.
  """
  directory = workdir_lib.Workdir(workdir, _WORKDIR_FLAG)
  trained = _read_config(directory, student, options.allowed)
  # Even if networks are equal, optimisers may differ.
  agent, params, number = playing.load_player(
    directory,
    trained,
    student.env_spec,
    options.checkpoint,
    line,
    _WORKDIR_FLAG,
  )
  made_by = f'checkpoint {number} of {directory.path} ({trained.agent})'
  if _network(trained) == _network(student.config):
    return Teacher(student.agent, params, made_by, is_student=True)
  return Teacher(
    _taught(student.agent, _by_agent(agent), agent.initial_core),
    _Pair(params, _zero_params(student.agent)),
    made_by,
  )


def _read_config(
  directory: workdir_lib.Workdir, student: Student, allowed: tuple[str, ...]
) -> ml_collections.ConfigDict:
  """Returns a teacher's configuration; checks that it may play."""
  own = trust.flags_needed(student.config.to_dict())
  trained = playing.read_config(directory, [*allowed, *own], _WORKDIR_FLAG)
  # Its config.json also holds the name of a factory's environment.
  if trained.env.id != student.env_spec.env_id:
    raise ValueError(
      f'{_WORKDIR_FLAG}={directory.path}: it was trained on '
      f'{trained.env.id}, and this is to play {student.env_spec.env_id}; give '
      '--config.env.id or --config.env.factory as it was trained.'
    )
  return trained


def from_policy(student: Student, reference: str, seed: int) -> Teacher:
  """Makes a teacher of a scripted policy.

  `reference` is `module:function`; the function maps `env_spec` and `seed` to a
  `Policy`.

  Raises:
    ValueError: if there is no such function.
  """
  flag = f'--policy={reference}'
  policy = settings.load_function(flag, reference)(student.env_spec, seed)
  return Teacher(
    _taught(student.agent, _by_script, lambda batch: ()),
    _Pair((), _zero_params(student.agent)),
    f'policy {reference}',
    wrap=lambda stream: ScriptedStream(stream, policy, flag),
  )


class ScriptedStream(playing.WrappedStream):
  """A stream whose observations include a policy's actions."""

  def __init__(self, stream: envs.EnvStream, policy: Policy, flag: str):
    super().__init__(stream)
    action = stream.spec.action
    self.spec = stream.spec._replace(
      observation=ScriptedObservation(
        types.ArraySpec(action.shape, action.dtype), stream.spec.observation
      )
    )
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
    scripted = ScriptedObservation(
      action.astype(spec.dtype), output.observation
    )
    return output._replace(observation=scripted)


def _by_script(
  params: Any, key: Any, step: types.AgentInput, core: Any, env_id: Any
) -> tuple[Any, Any, types.AgentInput]:
  """Chooses the action in the observation; see `_taught`."""
  del params, key, env_id
  action, observation = step.observation
  return action, core, step._replace(observation=observation)


def _by_agent(agent: agents.Agent) -> Callable[..., Any]:
  """Returns a function that chooses an agent's actions; see `_taught`."""

  def choose(
    params: Any, key: Any, step: types.AgentInput, core: Any, env_id: Any
  ) -> tuple[Any, Any, types.AgentInput]:
    output, core = agent.act(params, key, step, core, env_id)
    return output.action, core, step

  return choose


def _taught(
  student: agents.Agent,
  choose: Callable[..., tuple[Any, Any, types.AgentInput]],
  initial_core: Callable[[int], agents.Core],
) -> agents.Agent:
  """Returns the student with `choose`'s actions; its other outputs are zero.

  `choose` has the arguments of `ActFn`; it returns actions, the teacher's next
  core state, and the step as the student sees it.
  """

  def act(
    params: Any,
    key: jax.Array,
    step: types.AgentInput,
    core: Any,
    env_id: jax.Array,
  ) -> tuple[Any, Any]:
    action, chosen, seen = choose(
      params.teacher, key, step, core.teacher, env_id
    )
    output, own = student.act(params.student, key, seen, core.student, env_id)
    output = jax.tree.map(jnp.zeros_like, output)
    return output._replace(action=action), _Pair(chosen, own)

  return dataclasses.replace(
    student,
    act=act,
    initial_core=lambda batch: _Pair(
      initial_core(batch), student.initial_core(batch)
    ),
  )


def _zero_params(agent: agents.Agent) -> agents.Params:
  shapes = agent.params_shapes()
  return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def _network(config: ml_collections.ConfigDict) -> str:
  """Returns what outputs and core states depend on, to compare."""
  return json.dumps([config.agent, config.network.to_dict()], sort_keys=True)
