"""Who plays when demonstrations are recorded.

`recording` runs a `Teacher` in the inference worker. The same agent as the
student's is just that. Any other chooses the actions, while the student looks
on with parameters that are all zero: its own outputs and the state of its LSTM
are then zero, and the frames that it stacks are what it would have seen.
"""

import dataclasses
import json
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import trust
from seedrl_jax.evaluation import playing
from seedrl_jax.runtime import loading, progress
from seedrl_jax.runtime import workdir as workdir_lib

# Takes each step of the environments and returns actions, integers `[B]`; what
# it returns for a LAST step is ignored.
Policy = Callable[[types.EnvOutput], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Teacher:
  """Who acts.

  Attributes:
    agent: for the worker. Where it is not the student itself, its core state
      and observations have the student's last.
    params: acting parameters of `agent`, on the host.
    made_by: the teacher in words.
    is_student: whether outputs and core states are the student's own.
    wrap: puts around the environments what the teacher needs.
  """

  agent: agents.Agent
  params: agents.Params
  made_by: str
  is_student: bool
  wrap: Callable[[envs.EnvStream], envs.EnvStream] = lambda stream: stream


class _Pair(NamedTuple):
  """Something of the teacher's and the student's: parameters, core states."""

  teacher: types.Nest
  student: types.Nest


class ScriptedObservation(NamedTuple):
  """An observation with the action that a policy answers it with."""

  action: types.Array
  observation: types.Nest


def from_checkpoint(
  student: agents.Agent,
  config: Any,
  env_spec: types.EnvSpec,
  directory: workdir_lib.Workdir,
  number: int | None,
  line: progress.ProgressLine,
  allowed: Collection[str] = (),
) -> Teacher:
  """Makes a teacher of a run's checkpoint.

  Args:
    student: whose demonstrations these will be.
    config: the student's configuration.
    env_spec: of the environments to play.
    directory: the teacher's run.
    number: of the checkpoint; None: the newest.
    line: where to say what is wrong with others.
    allowed: flags that allow what is not of this package; what `config` names
      is the user's own and needs none. See `trust.check`.

  Raises:
    ValueError: where there is no such checkpoint, or it is of something else.
  """
  trained = directory.read_config()
  flag = '--teacher_workdir'
  own = trust.flags_needed(config.to_dict())
  trust.check(trained.to_dict(), [*allowed, *own], f'{flag}={directory.path}')
  # A run's own name for what a factory makes is in its config.json, too.
  if trained.env.id != env_spec.env_id:
    raise ValueError(
      f'{flag}={directory.path}: it was trained on {trained.env.id}, and this '
      f'is to play {env_spec.env_id}; give --config.env.id or '
      '--config.env.factory as it was trained.'
    )
  is_student = _network(trained) == _network(config)
  # Its optimiser may be another than the student's.
  agent = agents.load_agent(trained, env_spec)
  found = playing.load_params(directory, agent, number, line, flag)
  made_by = f'checkpoint {found.step} of {directory.path} ({trained.agent})'
  if is_student:
    return Teacher(student, found.state, made_by, True)

  def choose(params: Any, key: Any, step: Any, core: Any, env_id: Any) -> Any:
    output, core = agent.act(params, key, step, core, env_id)
    return output.action, core

  return Teacher(
    _taught(student, choose, agent.initial_core, lambda step: step),
    _Pair(found.state, _zero_params(student)),
    made_by,
    False,
  )


def from_policy(
  student: agents.Agent, env_spec: types.EnvSpec, reference: str, seed: int
) -> Teacher:
  """Makes a teacher of a scripted policy.

  Args:
    student: whose demonstrations these will be.
    env_spec: of the environments to play.
    reference: `module:function` of a function that takes `env_spec` and
      `seed`, and returns a `Policy`.
    seed: of what the policy draws.

  Raises:
    ValueError: where there is no such function.
  """
  flag = f'--policy={reference}'
  policy = loading.load_function(flag, reference)(env_spec, seed)

  def choose(params: Any, key: Any, step: Any, core: Any, env_id: Any) -> Any:
    del params, key, env_id
    return step.observation.action, core

  def look(step: types.AgentInput) -> types.AgentInput:
    return step._replace(observation=step.observation.observation)

  return Teacher(
    _taught(student, choose, lambda batch: (), look),
    _Pair((), _zero_params(student)),
    f'policy {reference}',
    False,
    lambda stream: ScriptedStream(stream, policy, flag),
  )


class ScriptedStream(envs.EnvStream):
  """A stream whose observations come with a policy's actions."""

  def __init__(self, stream: envs.EnvStream, policy: Policy, flag: str):
    """Takes over `stream`; `flag` is for messages about the policy."""
    self.spec = stream.spec._replace(
      observation=ScriptedObservation(
        types.ArraySpec((), np.dtype(np.int32)), stream.spec.observation
      )
    )
    self.num_envs = stream.num_envs
    self.batch_size = stream.batch_size
    self._stream = stream
    self._policy = policy
    self._flag = flag

  def recv(self) -> types.EnvOutput:
    """See `EnvStream.recv`.

    Raises:
      ValueError: where the policy's actions are none.
    """
    output = self._stream.recv()
    action = np.asarray(self._policy(output))
    bound = self.spec.action.num_values
    if (
      action.shape != output.env_id.shape
      or action.dtype.kind not in 'iu'
      or not ((action >= 0) & (action < bound)).all()
    ):
      raise ValueError(
        f'{self._flag}: it must return integers [{len(output.env_id)}] from 0 '
        f'to {bound - 1}; it returned {action.dtype}{list(action.shape)}: '
        f'{action.ravel()[:8]}.'
      )
    scripted = ScriptedObservation(action.astype(np.int32), output.observation)
    return output._replace(observation=scripted)

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    """See `EnvStream.send`."""
    self._stream.send(action, env_id)

  def take_episodes(self) -> list[envs.Episode]:
    """See `EnvStream.take_episodes`."""
    return self._stream.take_episodes()

  @property
  def dropped_episodes(self) -> int:
    """See `EnvStream.dropped_episodes`."""
    return self._stream.dropped_episodes

  def close(self) -> None:
    """See `EnvStream.close`."""
    self._stream.close()


def _taught(
  student: agents.Agent,
  choose: Callable[..., Any],
  initial_core: Callable[[int], agents.Core],
  look: Callable[[types.AgentInput], types.AgentInput],
) -> agents.Agent:
  """Returns the student, acting as `choose` says.

  Args:
    student: whose outputs, all zero but the action, and core are recorded.
    choose: takes what `ActFn` takes and returns actions and the next core.
    initial_core: of the teacher.
    look: makes of a step what the student sees of it.
  """

  def act(
    params: Any,
    key: jax.Array,
    step: types.AgentInput,
    core: Any,
    env_id: jax.Array,
  ) -> tuple[Any, Any]:
    action, chosen = choose(params.teacher, key, step, core.teacher, env_id)
    output, seen = student.act(
      params.student, key, look(step), core.student, env_id
    )
    output = jax.tree.map(jnp.zeros_like, output)
    return output._replace(action=action), _Pair(chosen, seen)

  return dataclasses.replace(
    student,
    act=act,
    initial_core=lambda batch: _Pair(
      initial_core(batch), student.initial_core(batch)
    ),
  )


def _zero_params(agent: agents.Agent) -> agents.Params:
  return jax.tree.map(
    lambda x: np.zeros(x.shape, x.dtype), agent.params_shapes()
  )


def _network(config: Any) -> str:
  """Returns what outputs and core states depend on, comparable."""
  return json.dumps([config.agent, config.network.to_dict()], sort_keys=True)
