"""Cuts episodes into the sequences that a run would have stored.

Whether an episode is kept is known only at its end, so its steps are buffered.
Kept episodes are joined, and a sequence may span several: LAST -> FIRST is no
transition, and the core state is zeroed at FIRST.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.demonstrations import teacher
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import playing
from seedrl_jax.inference import assembler
from seedrl_jax.replay import blocks


class _Step(NamedTuple):
  """One step: leaves `[1, ...]` of `types.Steps`, and of the core state before.

  `core` is empty unless a sequence starts here.
  """

  leaves: list[np.ndarray]
  core: list[np.ndarray]


class _Tape:
  """The kept episodes of one environment, joined into a circle."""

  def __init__(self, env_id: int, num_transitions: int):
    self.group = assembler.EnvGroup(
      np.array([env_id]), slice(env_id, env_id + 1)
    )
    self.game: list[_Step] = []  # the current one
    self.size = 0  # steps of all kept episodes
    self._head: list[_Step] = []  # the first of these
    self._num_transitions = num_transitions

  def keep_game(self) -> list[_Step]:
    """Keeps the current episode; returns its steps."""
    game, self.game = self.game, []
    self._head += game[: self._num_transitions - len(self._head)]
    self.size += len(game)
    return game

  def rest(self, stride: int) -> list[_Step]:
    """Returns the first steps again, to fill the sequences that have begun.

    So each step is trained on.
    """
    if not self.size:
      return []
    last_start = (self.size - 1) // stride * stride
    missing = last_start + self._num_transitions + 1 - self.size
    again = itertools.islice(itertools.cycle(self._head), missing)
    # The core states are of sequences that stay unfinished.
    core = self._head[0].core
    return [step._replace(core=core) for step in again]


class GameRecorder:
  """A `worker.StepSink` that records the steps of episodes in a quota.

  `quota` must have each episode by the time its last step is recorded.

  Attributes:
    episodes: those that were recorded.
    waited: seconds that it blocked the worker: none.
  """

  waited = 0.0

  def __init__(
    self,
    writer: assembler.BlockWriter,
    layout: blocks.UnrollLayout,
    worker_unroll: types.Unroll,
    quota: playing.EpisodeQuota,
    num_envs: int,
    min_return: float,
    priorities: assembler.Priorities | None = None,
    burn_in: int | None = None,
  ):
    """Writes blocks of one sequence.

    Args:
      worker_unroll: nest like an unroll of the worker's agent, a teacher's.
      min_return: least raw return of episodes to record.
      priorities, burn_in: see `UnrollAssembler`.
    """
    self.episodes: list[envs.Episode] = []
    self.num_envs = num_envs
    self._quota = quota
    self._num_ended = 0  # episodes of the quota
    self._min_return = min_return
    self._stride = layout.stride
    self._steps, self._core = (
      jax.tree.structure(x, is_leaf=types.is_spec)
      for x in (worker_unroll.steps, worker_unroll.initial_core)
    )
    num_transitions = layout.stride + layout.overlap - 1
    self._tapes = [_Tape(i, num_transitions) for i in range(num_envs)]
    # Whether the current episode counts.
    self._records = [quota.wants(i) for i in range(num_envs)]
    self._assembler = assembler.UnrollAssembler(
      writer,
      np.arange(num_envs),
      num_transitions,
      layout.overlap,
      block_width=1,
      priorities=priorities,
      burn_in=burn_in,
    )

  def record(
    self,
    group: assembler.EnvGroup,
    leaves: list[Any],
    take_core: assembler.TakeCore,
  ) -> None:
    """See `UnrollAssembler.record`; records only the student's part."""
    ids = group.env_id.tolist()
    rows = np.flatnonzero([self._needs_core(env_id) for env_id in ids])
    core = []
    if len(rows):
      nest = jax.tree.unflatten(self._core, take_core(rows))
      core = jax.tree.leaves(teacher.student_part(nest))
    starts = {row: i for i, row in enumerate(rows.tolist())}
    steps = jax.tree.unflatten(self._steps, leaves)
    observation = teacher.student_part(steps.observation)
    leaves = jax.tree.leaves(steps._replace(observation=observation))
    for row, env_id in enumerate(ids):
      if self._records[env_id]:
        core_row = _row(core, starts[row]) if row in starts else []
        self._tapes[env_id].game.append(_Step(_row(leaves, row), core_row))
    self._end_games()

  def ends(self, group: assembler.EnvGroup) -> bool:
    """Returns False: no sequence waits for new parameters."""
    del group
    return False

  def amend(self, group: assembler.EnvGroup, leaves: list[Any]) -> None:
    """Is never called, because no sequence waits."""
    raise NotImplementedError

  def reset(self, env_id: np.ndarray) -> None:
    """Does nothing: local environments never disconnect."""

  def close(self) -> None:
    """Completes the sequences of all environments."""
    for tape in self._tapes:
      self._assemble(tape, tape.rest(self._stride))

  def _needs_core(self, env_id: int) -> bool:
    """Returns whether a sequence starts here if the episode is kept."""
    tape = self._tapes[env_id]
    is_start = (tape.size + len(tape.game)) % self._stride == 0
    return self._records[env_id] and is_start

  def _end_games(self) -> None:
    ended = self._quota.episodes[self._num_ended :]
    self._num_ended += len(ended)
    for episode in ended:
      env_id = episode.env_id
      tape = self._tapes[env_id]
      if episode.episode_return >= self._min_return:
        self.episodes.append(episode)
        self._assemble(tape, tape.keep_game())
      tape.game = []
      self._records[env_id] = self._quota.wants(env_id)

  def _assemble(self, tape: _Tape, steps: list[_Step]) -> None:
    for leaves, core in steps:
      take_core = functools.partial(lambda core, rows: core, core)
      self._assembler.record(tape.group, leaves, take_core)


def _row(leaves: list[Any], row: int) -> list[np.ndarray]:
  """Returns copies: a view would keep the batch's arrays alive."""
  return [
    np.array(x[row : row + 1] if isinstance(x, np.ndarray) else [x])
    for x in leaves
  ]
