"""Several tasks in one run: environments that differ in their rules only.

Each environment of a stream has one task. Its steps have the task's number, an
index into `StreamSpec.tasks`, as an entry `types.TASK` of the observation. So
it reaches the network, the store and the learner by the same way.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, registry
from seedrl_jax.runtime import nest

_ADVICE = {
  'action': 'wrap one of them',
  'action repeat': 'set the same with --config.env.frame_skip',
  'observation': 'omit it (--config.env.drop_observations)',
}
_ATARI_ADVICE = 'give all games all actions (--config.env.full_action_space)'


def join_specs(specs: Sequence[types.StreamSpec]) -> types.StreamSpec:
  """Returns the spec of environments of several tasks, one spec for each.

  Raises:
    ValueError: if they differ in more than their names; says in what.
  """
  first = specs[0]
  for other in specs[1:]:
    _check_equal(first, other)
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


def _check_equal(one: types.StreamSpec, other: types.StreamSpec) -> None:
  ours, theirs = _facts(one), _facts(other)
  for name in ours | theirs:
    if ours.get(name) == theirs.get(name):
      continue
    advice = _ADVICE.get(name, _ADVICE['observation'])
    if name == 'action' and registry.is_atari(one.name):
      advice = _ATARI_ADVICE
    raise ValueError(
      f'--config.env.tasks: {one.name} and {other.name} differ in their '
      f'{name} ({ours.get(name, "none"):.200} and '
      f'{theirs.get(name, "none"):.200}); {advice}, or train them apart.'
    )


def _facts(spec: types.StreamSpec) -> dict[str, str]:
  """Returns all that tasks must agree in, by name."""
  action = spec.action
  bounds = f'{list(action.minimum)} to {list(action.maximum)}'
  facts = {
    'action repeat': str(spec.action_repeat),
    'action': f'{action.kind} {list(action.shape)} from {bounds}',
    'action mask': spec.action_mask or 'none',
  }
  for path, leaf in nest.flatten_with_paths(spec.observation):
    values = f' with values {leaf.categories}' if leaf.categories else ''
    name = f'observation {path}'.rstrip()
    facts[name] = f'{leaf.dtype}{list(leaf.shape)}{values}'
  return facts


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


class _Part(NamedTuple):
  """The environments of one task."""

  stream: base.LocalStream
  env_id: np.ndarray  # int32 `[n]`, ids in the whole stream


class TaskStream(base.LocalStream):
  """Streams of one task each, as one.

  A batch has environments of all tasks; each stream gives its share of it.
  """

  def __init__(
    self,
    spec: types.StreamSpec,
    tasks: np.ndarray,
    batch_size: int,
    make_stream: Callable[[int, int, int, int], base.LocalStream],
  ):
    """Makes the streams.

    Args:
      spec: of `join_specs`.
      tasks: int `[N]`, of all environments.
      batch_size: environments per `recv`, about.
      make_stream: from a task, the number of environments of earlier ones, of
        its own, and of these in a batch.
    """
    # By task.
    self._parts: dict[int, _Part] = {}
    with contextlib.ExitStack() as cleanup:
      start = 0
      for task in np.unique(tasks).tolist():
        env_id = np.flatnonzero(tasks == task).astype(np.int32)
        n = len(env_id)
        stream = make_stream(task, start, n, -(-n * batch_size // len(tasks)))
        cleanup.callback(stream.close)
        self._parts[task] = _Part(stream, env_id)
        start += n
      cleanup.pop_all()
    streams = [part.stream for part in self._parts.values()]
    super().__init__(
      spec,
      spec.action.dtype,
      len(tasks),
      sum(stream.batch_size for stream in streams),
      tasks,
    )
    self.steps_per_second = streams[0].steps_per_second
    self._local_id = np.empty(len(tasks), np.int32)
    for part in self._parts.values():
      self._local_id[part.env_id] = np.arange(len(part.env_id))

  @property
  def min_batch_size(self) -> int:
    return sum(part.stream.min_batch_size for part in self._parts.values())

  def recv(self) -> types.EnvOutput:
    outputs = []
    for task, part in self._parts.items():
      output = part.stream.recv()
      numbers = np.full(len(output.env_id), task, np.int32)
      observation = with_task(output.observation, numbers)
      env_id = part.env_id[output.env_id]
      outputs.append(output._replace(observation=observation, env_id=env_id))
    columns = zip(*map(nest.flatten, outputs), strict=True)
    leaves = [np.concatenate(column) for column in columns]
    if self.batch_size == self.num_envs:
      # In order, as actors send them.
      order = np.argsort(leaves[-1])
      leaves = [x[order] for x in leaves]
    output = nest.unflatten(outputs[0], leaves)
    assert isinstance(output, types.EnvOutput)
    return output

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    base.check_action(self.spec.action, action, env_id)
    tasks, local_id = self.tasks[env_id], self._local_id[env_id]
    for task, part in self._parts.items():
      rows = np.flatnonzero(tasks == task)
      if len(rows):
        part.stream.send(action[rows], local_id[rows])

  def take_episodes(self) -> list[base.Episode]:
    return [
      episode._replace(env_id=int(part.env_id[episode.env_id]), task=task)
      for task, part in self._parts.items()
      for episode in part.stream.take_episodes()
    ]

  def episode_so_far(self, env_id: int) -> tuple[float, int]:
    return self._stream_of(env_id).episode_so_far(int(self._local_id[env_id]))

  def render(self, env_id: int) -> np.ndarray | None:
    return self._stream_of(env_id).render(int(self._local_id[env_id]))

  def _stream_of(self, env_id: int) -> base.LocalStream:
    return self._parts[self.tasks[env_id]].stream

  def interrupt(self) -> None:
    super().interrupt()
    for part in self._parts.values():
      part.stream.interrupt()

  def close(self) -> None:
    """See `EnvStream.close`; closes all streams even if one raises."""
    super().interrupt()
    with contextlib.ExitStack() as stack:
      for part in self._parts.values():
        stack.callback(part.stream.close)


def task_config(config: types.Config, name: str) -> types.Config:
  """Returns the `env` section of one task of several."""
  section: Any = config.copy_and_resolve_references()
  section.unlock()
  section.id, section.tasks, section.task_weights = name, (), ()
  return section.lock()
