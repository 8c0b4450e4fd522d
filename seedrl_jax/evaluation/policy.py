"""Policies of checkpoints, which act without the environments installed."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import specs as env_specs
from seedrl_jax.envs import trust
from seedrl_jax.evaluation import playing
from seedrl_jax.runtime import nest as nest_lib
from seedrl_jax.runtime import progress
from seedrl_jax.runtime import workdir as workdir_lib


class State(NamedTuple):
  """What a policy keeps between steps, `[B, ...]`; all zeros at first."""

  core: agents.Core
  previous_action: jax.Array  # as the agent chose it, not clipped


def initial_state(agent: agents.Agent, spec: types.EnvSpec, size: int) -> State:
  """Returns the state of `size` environments."""
  action = spec.action
  previous = jnp.zeros((size, *action.shape), action.dtype)
  return State(agent.initial_core(size), previous)


def make_step(
  agent: agents.Agent, spec: types.EnvSpec, sample: bool = False
) -> Callable[..., tuple[jax.Array, State]]:
  """Returns a function to jit or export: one step of B environments.

  It maps acting parameters, `State`, PRNG key, observation, reward float32
  `[B]` and first bool `[B]` to actions, within their bounds, and the next
  state. `sample` acts as the first training environment does, else it acts as
  evaluation environments do.
  """
  # Environments from num_envs on are of evaluation.
  number = 0 if sample else spec.num_envs

  def step(
    params: agents.Params,
    state: State,
    key: jax.Array,
    observation: types.Nest,
    reward: jax.Array,
    first: jax.Array,
  ) -> tuple[jax.Array, State]:
    previous = state.previous_action
    column = first.reshape((-1, *[1] * (previous.ndim - 1)))
    inputs = types.AgentInput(
      observation=observation,
      reward=jnp.where(first, 0.0, reward),
      previous_action=jnp.where(column, 0, previous).astype(previous.dtype),
      first=first,
    )
    env_id = jnp.full(first.shape, number, jnp.int32)
    output, core = agent.act(params, key, inputs, state.core, env_id)
    return _clip(output.action, spec.action), State(core, output.action)

  return step


def _clip(action: jax.Array, spec: types.ActionSpec) -> jax.Array:
  if spec.is_discrete:
    return action
  low, high = (
    np.reshape(bound, spec.shape).astype(spec.dtype)
    for bound in (spec.minimum, spec.maximum)
  )
  return jnp.clip(action, low, high)


class Policy:
  """Acts in one environment or in a batch of them, and keeps their state.

  Attributes:
    spec: of the environments that it was trained in.
    checkpoint: its number, which is that of its update.
  """

  def __init__(
    self,
    player: playing.Player,
    spec: types.EnvSpec,
    sample: bool = False,
    seed: int = 0,
  ):
    self.spec = spec
    self.checkpoint = player.version
    self._agent = player.agent
    self._params = jax.device_put(player.params)
    self._key = jax.random.PRNGKey(seed)
    self._step = jax.jit(make_step(player.agent, spec, sample))
    self._state: State | None = None
    self._first = np.empty(0, bool)

  def reset(self, which: Sequence[int] | np.ndarray | None = None) -> None:
    """Says that episodes begin: all, or those of the batch's rows `which`.

    After a reset of all, the next batch may have another size.
    """
    if which is None:
      self._state = None
    else:
      self._first[np.asarray(which)] = True

  def act(
    self, observation: types.Nest, reward: float | np.ndarray = 0.0
  ) -> np.ndarray:
    """Returns the action for an observation, or actions for a batch.

    Call it once a step, and `reset` when an episode begins.

    Args:
      observation: as the environment gives it, of the shapes in
        `spec.observation` or `[B, ...]`; a dict of vectors may stand for their
        sequence.
      reward: the last action's, or `[B]`; only agents with
        `network.use_previous_action` read it.

    Raises:
      ValueError: if the shapes are others, or the batch's size has changed.
    """
    observation, size = self._batched(observation)
    rows = size or 1
    if self._state is None:
      self._state = initial_state(self._agent, self.spec, rows)
      self._first = np.ones(rows, bool)
    elif len(self._first) != rows:
      raise ValueError(
        f'The batch has {rows} observations, and the one before had '
        f'{len(self._first)}; call reset() between them.'
      )
    self._key, key = jax.random.split(self._key)
    reward = np.broadcast_to(np.float32(reward), (rows,))
    action, self._state = self._step(
      self._params, self._state, key, observation, reward, self._first
    )
    self._first = np.zeros(rows, bool)
    return np.asarray(action) if size else np.asarray(action)[0]

  def _batched(self, observation: types.Nest) -> tuple[types.Nest, int | None]:
    """Returns a batch, and its size or None for a single observation."""
    spec = self.spec.observation
    if types.is_spec(spec) and isinstance(observation, Mapping):
      observation = _joined(spec, dict(observation))
    if not types.is_spec(spec):
      # Keys that training dropped may be there.
      observation = _keep(spec, observation)
    specs = nest_lib.flatten(spec)
    leaves = nest_lib.flatten(observation)
    for x, s in zip(leaves, specs, strict=True):
      env_specs.check_fits(x, s.dtype)
    leaves = [
      np.asarray(x, s.dtype) for x, s in zip(leaves, specs, strict=True)
    ]
    shapes = [s.shape for s in specs]
    if [x.shape for x in leaves] == shapes:
      return nest_lib.unflatten(spec, [x[None] for x in leaves]), None
    if [x.shape[1:] for x in leaves] == shapes and len({
      len(x) for x in leaves
    }) == 1:
      return nest_lib.unflatten(spec, leaves), len(leaves[0])
    raise ValueError(
      f'The observation has shapes {[x.shape for x in leaves]}; '
      f'{self.spec.env_id} has {shapes}, or a batch of these.'
    )


def _joined(spec: types.ArraySpec, observation: types.Nest) -> np.ndarray:
  """Returns numbers and vectors as one vector, or batches of them as one."""
  leaves = [np.asarray(x) for x in nest_lib.flatten(observation)]
  if sum(x.size for x in leaves) == spec.shape[0] or not leaves[0].ndim:
    return np.concatenate([x.ravel() for x in leaves])
  return np.concatenate([x.reshape(len(x), -1) for x in leaves], axis=1)


def _keep(spec: types.Nest, observation: Any) -> types.Nest:
  """Returns what training saw of an observation."""
  if types.is_spec(spec):
    return observation
  if missing := spec.keys() - observation.keys():
    raise ValueError(f'The observation lacks {", ".join(sorted(missing))}.')
  return {key: _keep(spec[key], observation[key]) for key in spec}


def load(
  workdir: str | os.PathLike[str],
  checkpoint: int | None = None,
  allowed: Sequence[str] = (),
) -> tuple[playing.Player, types.EnvSpec]:
  """Returns a checkpoint's agent and the spec of its environments.

  `checkpoint` None is the newest; `allowed` are flags that allow foreign code,
  see `trust.check`.

  Raises:
    ValueError: if the work directory holds no such checkpoint.
  """
  directory = workdir_lib.Workdir(workdir)
  config = directory.read_config()
  trust.check(config.to_dict(), allowed, f'--workdir={directory.path}')
  spec = directory.read_env_spec()
  line = progress.ProgressLine()
  return playing.load_player(directory, config, spec, checkpoint, line), spec
