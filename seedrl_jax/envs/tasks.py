"""Several tasks in one run: environments that differ in their rules only.

Each environment of a stream has one task. Its steps have the task's number, an
index into `StreamSpec.tasks`, as an entry `types.TASK` of the observation. So
it reaches the network, the store and the learner by the same way.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base
from seedrl_jax.runtime import nest

# What tasks must agree in, and what to do if they do not.
_ADVICE = {
  'action_repeat': 'set the same with --config.env.frame_skip',
  'action': 'wrap one of them, or give all games of Atari all actions '
  '(--config.env.full_action_space=True)',
  'action_mask': 'set the same with --config.env.action_mask',
  'observation': 'omit what differs (--config.env.drop_observations)',
}


def join_specs(specs: Sequence[types.StreamSpec]) -> types.StreamSpec:
  """Returns the spec of environments of several tasks, one spec for each.

  Raises ValueError if they differ in more than their names; says in what.
  """
  first = specs[0]
  for other in specs[1:]:
    for field, advice in _ADVICE.items():
      ours, theirs = getattr(first, field), getattr(other, field)
      if ours != theirs:
        raise ValueError(
          f'--config.env.tasks: {first.name} and {other.name} differ in their '
          f'{field} ({ours!s:.300} and {theirs!s:.300}); {advice}, or train '
          'them apart.'
        )
  observation = first.observation
  if not isinstance(observation, dict):
    observation = {'observation': observation}
  if types.TASK in observation:
    raise ValueError(
      f'--config.env.tasks: {first.name} observes {types.TASK!r}, the name of '
      'what tells tasks apart; omit it '
      f'(--config.env.drop_observations={types.TASK},…).'
    )
  numbers = types.ArraySpec((), np.dtype(np.int32), (range(len(specs)),))
  return first._replace(
    observation=observation | {types.TASK: numbers},
    name=f'{first.name} and {len(specs) - 1} more',
    parts=None,
    tasks=tuple(spec.name for spec in specs),
  )


def with_task(observation: types.Nest, task: types.Array) -> types.Nest:
  """Returns an observation `[B, ...]` with its task, int32 `[B]`."""
  if not isinstance(observation, dict):
    observation = {'observation': observation}
  return observation | {types.TASK: task}


def assign(num_envs: int, weights: Sequence[float]) -> np.ndarray:
  """Returns the tasks, int32 `[num_envs]`, of environments 0, 1, ...

  Any consecutive environments have tasks in proportion to their weights, as far
  as their number allows.
  """
  shares = np.array(weights) / sum(weights)
  counts = np.zeros(len(shares))
  tasks = np.empty(num_envs, np.int32)
  for i in range(num_envs):
    # The task that lacks most of its share.
    tasks[i] = task = np.argmax(shares * (i + 1) - counts)
    counts[task] += 1
  return tasks


class TaskStream(base.LocalStream):
  """Streams of one task each, as one.

  A batch has environments of all tasks; each stream gives its share of it.
  """

  def __init__(
    self,
    spec: types.StreamSpec,
    tasks: np.ndarray,
    streams: Mapping[int, base.LocalStream],
  ):
    """`spec` is of `join_specs`, and `tasks`, int `[N]`, of all environments.

    `streams` have those of each task, in order.
    """
    batch_size = sum(stream.batch_size for stream in streams.values())
    super().__init__(spec, spec.action.dtype, len(tasks), batch_size, tasks)
    fewest = [stream.min_batch_size for stream in streams.values()]
    self.min_batch_size = sum(fewest)
    self._streams = streams
    # Of each task, int32 `[n]`, ids in the whole stream.
    self._env_id: dict[int, np.ndarray] = {}
    self._local_id = np.empty(len(tasks), np.int32)
    for task, stream in streams.items():
      env_id = np.flatnonzero(tasks == task).astype(np.int32)
      self._env_id[task] = env_id
      self._local_id[env_id] = np.arange(len(env_id))
      self.steps_per_second = stream.steps_per_second

  def recv(self) -> types.EnvOutput:
    outputs = []
    for task, stream in self._streams.items():
      output = stream.recv()
      numbers = np.full(len(output.env_id), task, np.int32)
      observation = with_task(output.observation, numbers)
      env_id = self._env_id[task][output.env_id]
      outputs.append(output._replace(observation=observation, env_id=env_id))
    columns = zip(*map(nest.flatten, outputs), strict=True)
    leaves = [np.concatenate(column) for column in columns]
    if self.batch_size == self.num_envs:
      # In order, as actors send them.
      order = np.argsort(leaves[-1])
      leaves = [x[order] for x in leaves]
    whole: types.EnvOutput = nest.unflatten(outputs[0], leaves)
    return whole

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    base.check_action(self.spec.action, action, env_id)
    tasks, local_id = self.tasks[env_id], self._local_id[env_id]
    for task, stream in self._streams.items():
      rows = np.flatnonzero(tasks == task)
      if len(rows):
        stream.send(action[rows], local_id[rows])

  def take_episodes(self) -> list[base.Episode]:
    return [
      episode._replace(env_id=int(env_id[episode.env_id]), task=task)
      for task, env_id in self._env_id.items()
      for episode in self._streams[task].take_episodes()
    ]

  def episode_so_far(self, env_id: int) -> base.Episode:
    stream, task = self._stream_of(env_id), int(self.tasks[env_id])
    episode = stream.episode_so_far(int(self._local_id[env_id]))
    return episode._replace(env_id=env_id, task=task)

  def render(self, env_id: int) -> np.ndarray | None:
    return self._stream_of(env_id).render(int(self._local_id[env_id]))

  def _stream_of(self, env_id: int) -> base.LocalStream:
    return self._streams[self.tasks[env_id]]

  def interrupt(self) -> None:
    super().interrupt()
    for stream in self._streams.values():
      stream.interrupt()

  def close(self) -> None:
    """See `EnvStream.close`; closes all streams even if one raises."""
    super().interrupt()
    with contextlib.ExitStack() as stack:
      for stream in self._streams.values():
        stack.callback(stream.close)


def task_config(config: types.Config, name: str) -> types.Config:
  """Returns the `env` section of one task of several."""
  section: Any = config.copy_and_resolve_references()
  section.unlock()
  section.id, section.tasks, section.task_weights = name, (), ()
  return section.lock()
