"""Cuts played games into the sequences that a run would have stored.

`recording` hands `GameRecorder` to the inference worker in an assembler's
place. Whether a game is kept is known only at its end, and a sequence may hold
the end of one game and the start of the next; so the steps of a game wait, and
those that are kept go on a tape as if nothing had been played between them.
That is no less true: LAST -> FIRST is no transition, and a core state is zeroed
at FIRST whatever came before.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import stream
from seedrl_jax.inference import assembler
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks

# Sequences that are handed on together.
_WIDTH = 16


class Step(NamedTuple):
  """One step of one environment.

  Attributes:
    leaves: of `types.Steps`, each `[...]`.
    core: leaves of the core state before it, each `[...]`; empty where no
      sequence starts.
  """

  leaves: list[np.ndarray]
  core: list[np.ndarray]


class Tape:
  """The kept games of one environment, one after the other, as a circle.

  Every `stride` steps a sequence begins. The last ones end with the first
  games again: so each step is trained on, however few there are.
  """

  def __init__(
    self,
    num_transitions: int,
    stride: int,
    emit: Callable[[Sequence[Step]], None],
  ):
    """Makes an empty tape.

    Args:
      num_transitions: T; a sequence has T + 1 steps.
      stride: steps between the starts of two sequences, 1..T.
      emit: takes the steps of a sequence; the first has its core state.
    """
    self._length = num_transitions + 1
    self._stride = stride
    self._emit = emit
    self._game: list[Step] = []  # under way
    self._tape: list[Step] = []  # from the next sequence's start on
    self._head: list[Step] = []  # the circle's first T
    self._size = 0  # steps that were kept
    self._start = 0  # of the next sequence

  @property
  def needs_core(self) -> bool:
    """Whether a sequence starts with the next step, if its game is kept."""
    return (self._size + len(self._game)) % self._stride == 0

  def append(self, step: Step) -> None:
    """Adds a step to the game under way."""
    self._game.append(step)

  def end_game(self, keep: bool) -> None:
    """Puts the game under way on the tape, or forgets it."""
    game, self._game = self._game, []
    if not keep:
      return
    self._head += game[: self._length - 1 - len(self._head)]
    self._tape += game
    self._size += len(game)
    while len(self._tape) >= self._length:
      self._cut(self._tape[: self._length])

  def close(self) -> None:
    """Completes the circle."""
    while self._start < self._size:
      missing = self._length - len(self._tape)
      again = itertools.islice(itertools.cycle(self._head), missing)
      self._cut([*self._tape, *again])

  def _cut(self, sequence: list[Step]) -> None:
    self._emit(sequence)
    del self._tape[: self._stride]
    self._start += self._stride


class SequenceBlocks:
  """Lays sequences side by side in blocks."""

  def __init__(
    self,
    layout: blocks.UnrollLayout,
    take: Callable[[replay.Block, int], None],
  ):
    """Makes the first block.

    Args:
      layout: of the sequences.
      take: takes a block and how many of its first columns hold a sequence;
        the block is written to again afterwards.
    """
    self._take = take
    self._num_steps_leaves = sum(layout.time_major)
    self._block = layout.new_block(_WIDTH)
    for leaf in self._block.leaves:
      leaf.fill(0)
    self._count = 0

  @property
  def num_steps_leaves(self) -> int:
    """Leaves of `types.Steps`; those of the core state follow."""
    return self._num_steps_leaves

  @property
  def num_core_leaves(self) -> int:
    """Leaves of the core state."""
    return len(self._block.leaves) - self._num_steps_leaves - 1

  def add(self, env_id: int, sequence: Sequence[Step]) -> None:
    """Adds a sequence of an environment's T + 1 steps."""
    column, self._count = self._count, self._count + 1
    *leaves, env_ids = self._block.leaves
    steps = leaves[: self._num_steps_leaves]
    core = leaves[self._num_steps_leaves :]
    for row, step in enumerate(sequence):
      for leaf, value in zip(steps, step.leaves, strict=True):
        leaf[row, column] = value
    for leaf, value in zip(core, sequence[0].core, strict=True):
      leaf[column] = value
    env_ids[column] = env_id
    if self._count == _WIDTH:
      self.flush()

  def flush(self) -> None:
    """Hands on what is there."""
    if self._count:
      self._take(self._block, self._count)
    self._count = 0


class _Placement(NamedTuple):
  env_id: np.ndarray
  core_rows: np.ndarray
  leaves: list[np.ndarray]


class GameRecorder:
  """Takes every step of a worker's environments; a `worker.StepSink`."""

  def __init__(
    self,
    sequences: SequenceBlocks,
    num_transitions: int,
    stride: int,
    num_envs: int,
    quota: stream.EpisodeQuota,
    keep: Callable[[envs.Episode], bool],
  ):
    """Makes a recorder that has seen nothing.

    Args:
      sequences: take what is cut.
      num_transitions: T of a sequence.
      stride: steps between the starts of two sequences.
      num_envs: environments, which come in one batch.
      quota: has the episodes that count, each by the time that its last step
        is recorded.
      keep: says whether to keep an episode.
    """
    self.kept: list[envs.Episode] = []
    self.num_envs = num_envs
    self._sequences = sequences
    self._quota = quota
    self._keep = keep
    self._seen = 0  # episodes of the quota
    self._tapes = [
      Tape(num_transitions, stride, functools.partial(sequences.add, i))
      for i in range(num_envs)
    ]
    # Whether the game under way counts.
    self._records = [quota.wants(i) for i in range(num_envs)]

  @property
  def waited(self) -> float:
    """Seconds that it held the worker up: none."""
    return 0.0

  def begin(self, group: assembler.EnvGroup) -> _Placement:
    """See `UnrollAssembler.begin`."""
    env_id = group.env_id
    rows = [
      row
      for row, i in enumerate(env_id.tolist())
      if self._records[i] and self._tapes[i].needs_core
    ]
    return _Placement(env_id, np.array(rows, np.int64), [])

  def write(self, placement: _Placement, leaves: list[np.ndarray]) -> None:
    """As `UnrollAssembler.write`; what a teacher added comes first: left."""
    kept = leaves[-self._sequences.num_steps_leaves :]
    placement.leaves.extend(kept)

  def finish(self, placement: _Placement, core: list[np.ndarray]) -> None:
    """As `UnrollAssembler.finish`; what a teacher keeps comes first in core."""
    own_core = core[len(core) - self._sequences.num_core_leaves :]
    starts = {row: i for i, row in enumerate(placement.core_rows.tolist())}
    for row, env_id in enumerate(placement.env_id.tolist()):
      if not self._records[env_id]:
        continue
      # Copies, as the batch's arrays would be kept for a single row.
      leaves = [
        np.array(x[row] if isinstance(x, np.ndarray) else x)
        for x in placement.leaves
      ]
      start = starts.get(row)
      before = [] if start is None else [np.array(x[start]) for x in own_core]
      self._tapes[env_id].append(Step(leaves, before))
    self._end_games()

  def reset(self, env_id: np.ndarray) -> None:
    """Does nothing: environments of this process never go away."""

  def close(self) -> None:
    """Completes the sequences of all environments."""
    for tape in self._tapes:
      tape.close()
    self._sequences.flush()

  def _end_games(self) -> None:
    ended = self._quota.episodes[self._seen :]
    self._seen += len(ended)
    for episode in ended:
      keep = self._keep(episode)
      self._tapes[episode.env_id].end_game(keep)
      if keep:
        self.kept.append(episode)
      self._records[episode.env_id] = self._quota.wants(episode.env_id)
