"""Policies of checkpoints, which act without the environments installed.

They act here, or are exported as a StableHLO function.
"""

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import step_checks
from seedrl_jax.evaluation import playing
from seedrl_jax.runtime import file_io, progress
from seedrl_jax.runtime import nest as nest_lib
from seedrl_jax.runtime import workdir as workdir_lib

_PLATFORMS = ('cpu', 'cuda', 'tpu')


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
    action, bounds = output.action, (spec.action.minimum, spec.action.maximum)
    if not spec.action.is_discrete:
      low, high = (
        np.reshape(x, spec.action.shape).astype(spec.action.dtype)
        for x in bounds
      )
      action = jnp.clip(action, low, high)
    return action, State(core, output.action)

  return step


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
    self, observation: Any, reward: float | np.ndarray = 0.0
  ) -> np.ndarray:
    """Returns the action for an observation, or actions for a batch.

    Call it once a step, and `reset` when an episode begins.

    Args:
      observation: as the environment gives it, or `[B, ...]` in each array;
        arrays may be lists, and keys that training dropped may be there.
      reward: the last action's, or `[B]`; only agents with
        `network.use_previous_action` read it.

    Raises:
      ValueError: if observation or reward would not pass in training, or the
        batch is empty or of another size than before.
    """
    try:
      observation, size = self._read(observation)
      rows = 1 if size is None else size
      rewards = np.broadcast_to(np.asarray(reward, np.float32), rows)
      if not np.isfinite(rewards).all():
        raise ValueError('the reward is not finite.')
    except step_checks.InvalidStep as e:
      raise ValueError(f'Policy.act: the caller {e}') from e
    except ValueError as e:
      raise ValueError(f'Policy.act: {e}') from e
    if self._state is None:
      self._state = initial_state(self._agent, self.spec, rows)
      self._first = np.ones(rows, bool)
    elif len(self._first) != rows:
      raise ValueError(
        f'The batch has {rows} observations, and the one before had '
        f'{len(self._first)}; call reset() between them.'
      )
    self._key, key = jax.random.split(self._key)
    action, self._state = self._step(
      self._params,
      self._state,
      key,
      observation,
      rewards,
      self._first,
    )
    self._first = np.zeros(rows, bool)
    return np.asarray(action)[0] if size is None else np.asarray(action)

  def _read(self, observation: Any) -> tuple[types.Nest, int | None]:
    """Returns a batch, and its size or None for a single observation."""
    spec = self.spec.observation
    is_dict = isinstance(observation, Mapping)
    has_parts = is_dict and self.spec.stream.parts is not None
    if has_parts:
      spec = self.spec.stream.parts
    elif is_dict and types.is_spec(spec) and len(spec.shape) == 1:
      # Earlier releases did not write the parts down.
      observation = _joined(observation, *spec.shape)
    singles = nest_lib.flatten_with_paths(spec)
    size = _batch_size(observation, spec)
    if size == 0:
      raise ValueError('the batch is empty; give an observation.')
    if size is not None:
      spec = nest_lib.unflatten(
        spec, [s._replace(shape=(size, *s.shape)) for _, s in singles]
      )
    leaves = step_checks.read(observation, spec)
    for (key, single), x in zip(singles, leaves, strict=True):
      if single.categories and not single.shape:
        (values,) = single.categories
        low, high = np.asarray(values[0]), np.asarray(values[-1])
        if violation := step_checks.Bounds(key, low, high).violation(x):
          raise step_checks.InvalidStep(violation[1])
    if size is not None:
      leaves = [x[0] for x in leaves]
    if has_parts:
      return nest_lib.join(leaves), size
    return nest_lib.unflatten(spec, leaves), size


def _joined(observation: Any, size: int) -> Any:
  """Returns a dict's arrays, or batches of them, as vectors of `size` numbers.

  Returns what cannot be joined as it is.
  """
  try:
    leaves = list(_arrays(observation))
    if sum(x.size for x in leaves) == size:
      return nest_lib.join([x[None] for x in leaves])[0]
    return nest_lib.join(leaves)
  except (TypeError, ValueError):
    return observation


def _arrays(observation: Any) -> Iterator[np.ndarray]:
  if isinstance(observation, Mapping):
    for key in sorted(observation):
      yield from _arrays(observation[key])
  else:
    yield np.asarray(observation)


def _batch_size(observation: Any, spec: types.Nest) -> int | None:
  """Returns a batch's size; None for one observation, or one that is wrong."""
  while isinstance(spec, dict):
    key, spec = next(iter(spec.items()))
    if not isinstance(observation, Mapping) or key not in observation:
      return None
    observation = observation[key]
  try:
    shape = np.shape(observation)
  except ValueError:
    return None
  return shape[0] if len(shape) > len(spec.shape) else None


def load(
  workdir: str | os.PathLike[str],
  checkpoint: int | str | None = None,
  allowed: Sequence[str] = (),
  factory: str = '',
) -> tuple[playing.Player, types.EnvSpec]:
  """Returns a checkpoint's agent and the spec of its environments.

  See `playing.load_player` for `checkpoint`, and `playing.read_config` for the
  others.

  Raises ValueError if the work directory holds no such checkpoint.
  """
  directory = workdir_lib.Workdir(workdir)
  config = playing.read_config(directory, allowed, factory=factory)
  spec = directory.read_env_spec()
  line = progress.ProgressLine()
  return playing.load_player(directory, config, spec, checkpoint, line), spec


def export(
  player: playing.Player,
  spec: types.EnvSpec,
  folder: pathlib.Path,
  batch_size: int = 1,
  sample: bool = False,
) -> None:
  """Writes a policy as a function that needs only JAX to run.

  It maps (inputs, state) to (actions `[B, ...]`, next state). `inputs` has the
  keys 'observation', 'reward', 'first' and 'key', and 'state' is a list of
  arrays, all zeros at first. `policy.stablehlo` in `folder`, which is made, is
  a serialized `jax.export.Exported`; `policy.json` describes inputs and
  outputs.

  Raises NotWritten if a file cannot be written, and OSError if the folder
  cannot be made.
  """

  def rows(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch_size, *shape), dtype)

  inputs = {
    'observation': jax.tree.map(
      lambda s: rows(s.dtype, *s.shape),
      spec.observation,
      is_leaf=types.is_spec,
    ),
    'reward': rows(jnp.float32),
    'first': rows(jnp.bool_),
    'key': jax.ShapeDtypeStruct((2,), jnp.uint32),
  }
  state = jax.eval_shape(lambda: initial_state(player.agent, spec, batch_size))
  leaves, structure = jax.tree.flatten(state)
  step = make_step(player.agent, spec, sample)

  @jax.jit
  def call(inputs: dict[str, Any], state: list[Any]) -> tuple[Any, list[Any]]:
    before = jax.tree.unflatten(structure, state)
    action, after = step(player.params, before, **inputs)
    return action, jax.tree.leaves(after)

  exported = jax_export.export(call, platforms=_PLATFORMS)(inputs, leaves)
  folder.mkdir(parents=True, exist_ok=True)
  file_io.write_whole(folder / 'policy.stablehlo', bytes(exported.serialize()))
  description = {
    'environment': spec.env_id,
    'checkpoint': player.version,
    'platforms': _PLATFORMS,
    'inputs': jax.tree.map(_description, inputs),
    'state': [_description(x) for x in leaves],
    'action': _description(exported.out_avals[0]),
  }
  file_io.write_json(folder / 'policy.json', description)


def _description(x: Any) -> dict[str, Any]:
  return {'shape': x.shape, 'dtype': x.dtype.name}
