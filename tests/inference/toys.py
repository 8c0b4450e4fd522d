"""A scripted stream and a tiny recurrent agent with predictable values."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.envs import base as envs

NUM_ACTIONS = 1000
# Global ids from here on are evaluation environments.
FIRST_EVAL_ID = 500
PARAMS = {'scale': np.float32(3)}

SPEC = types.StreamSpec(
  observation={
    'image': types.ArraySpec((2, 1), np.dtype(np.uint8)),
    'vector': types.ArraySpec((2,), np.dtype(np.float32)),
  },
  action=types.discrete(NUM_ACTIONS),
  action_repeat=1,
  name='Scripted-v0',
)


class Output(NamedTuple):
  """Agent output that reports the inputs of `act`.

  Attributes:
    action: random; 0 for evaluation environments ("greedy").
    seen: float32 `[B, 3]`: reward x scale, previous action, FIRST.
  """

  action: jax.Array
  seen: jax.Array
  env_id: jax.Array


def _init(key: jax.Array) -> base.Params:
  del key
  return {'scale': jnp.float32(1)}


def _initial_core(batch: int) -> base.Core:
  """Steps of the episode so far, and the last observed vector."""
  return {
    'steps': jnp.zeros(batch, jnp.int32),
    'vector': jnp.zeros((batch, 2), jnp.float32),
  }


def _act(
  params: base.Params,
  key: jax.Array,
  step: types.AgentInput,
  core: base.Core,
  env_id: jax.Array,
) -> tuple[Output, base.Core]:
  sampled = jax.random.randint(key, env_id.shape, 1, NUM_ACTIONS)
  seen = [step.reward * params['scale'], step.previous_action, step.first]
  output = Output(
    action=jnp.where(env_id >= FIRST_EVAL_ID, 0, sampled),
    seen=jnp.stack([x.astype(jnp.float32) for x in seen], axis=1),
    env_id=env_id,
  )
  if not core:
    return output, core
  steps = jnp.where(step.first, 0, core['steps']) + 1
  return output, {'steps': steps, 'vector': step.observation['vector']}


def _update(
  state: base.State, batch: types.Batch, key: jax.Array, progress: jax.Array
) -> tuple[base.State, base.UpdateOutput]:
  raise NotImplementedError('Inference does not train.')


def make_agent(has_core: bool = True, overlap: int = 1) -> base.Agent:
  """Returns the agent; its outputs do not depend on `has_core`."""
  return base.Agent(
    init=_init,
    acting_params=lambda state: state,
    initial_core=_initial_core if has_core else lambda batch: (),
    act=_act,
    update=_update,
    overlap=overlap,
  )


class Stream(envs.EnvStream):
  """Emits the batches of a schedule, then is closed.

  Environment e's episodes last `3 + e % 4` steps; those of odd ones terminate,
  the others are truncated. The reward is 1 + the last action.
  """

  def __init__(
    self, num_envs: int, schedule: list[list[int]], min_batch_size: int = 0
  ):
    self.spec = SPEC
    self.num_envs = num_envs
    self.batch_size = max(len(ids) for ids in schedule)
    self.outputs: list[types.EnvOutput] = []
    self.actions: list[np.ndarray] = []
    self._schedule = iter(schedule)
    self.min_batch_size = min_batch_size or self.batch_size
    self._count = np.zeros(num_envs, np.int64)
    self._last_action = np.zeros(num_envs, np.int32)
    self._awaited: list[int] = []

  def recv(self) -> types.EnvOutput:
    ids = next(self._schedule, None)
    if ids is None:
      raise envs.StreamClosed('The schedule has ended.')
    assert not self._awaited, 'recv before the last batch was answered'
    self._awaited = ids
    env_id = np.array(ids, np.int32)
    count = self._count[env_id]
    self._count[env_id] += 1
    # FIRST, then the episode's steps.
    length = 3 + env_id % 4
    place = count % (length + 1)
    step_type = np.full(len(ids), types.StepType.MID, np.uint8)
    step_type[place == 0] = types.StepType.FIRST
    step_type[place == length] = types.StepType.LAST
    terminated = (place == length) & (env_id % 2 == 1)
    output = types.EnvOutput(
      observation={
        'image': (count[:, None, None] + [[0], [100]]).astype(np.uint8),
        'vector': np.stack([env_id, count], axis=1).astype(np.float32),
      },
      reward=np.where(place == 0, 0, 1 + self._last_action[env_id]).astype(
        np.float32
      ),
      discount=1 - terminated.astype(np.float32),
      step_type=step_type,
      env_id=env_id,
    )
    self.outputs.append(output)
    return output

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    assert env_id.tolist() == self._awaited
    assert action.dtype == np.int32 and action.shape == env_id.shape
    self._awaited = []
    self._last_action[env_id] = action
    self.actions.append(action.copy())

  def take_episodes(self) -> list[envs.Episode]:
    return []

  def close(self) -> None:
    self._schedule = iter(())


@contextlib.contextmanager
def count_compilations() -> Iterator[list[str]]:
  """Yields a list that grows with each compilation by XLA."""
  compiled: list[str] = []

  def listen(event: str, duration: float, **kwargs: str | int) -> None:
    del duration, kwargs
    if event == '/jax/core/compile/backend_compile_duration':
      compiled.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield compiled
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)
