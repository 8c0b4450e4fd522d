"""Cuts episodes into the sequences that a run would have stored.

Whether an episode is kept is known only at its end, so its steps are buffered.
Kept episodes are joined, and a sequence may span several: LAST -> FIRST is no
transition, and the core state is zeroed at FIRST.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import playing
from seedrl_jax.inference import assembler
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks

# Sequences of a block.
_WIDTH = 16


class Step(NamedTuple):
  """One step: leaves `[...]` of `types.Steps`, and of the core state before it.

  `core` is empty unless a sequence starts here.
  """

  leaves: list[np.ndarray]
  core: list[np.ndarray]


class Tape:
  """The kept episodes of one environment, joined into a circle.

  A sequence of `length` = T + 1 steps begins every `stride` steps. The last
  ones wrap around to the first episodes, so that each step is trained on.
  `emit` receives sequences; the first step of each has its core state.
  """

  def __init__(
    self, length: int, stride: int, emit: Callable[[Sequence[Step]], None]
  ):
    self._length = length
    self._stride = stride
    self._emit = emit
    self._game: list[Step] = []  # the current one
    self._tape: list[Step] = []  # from the next sequence's start on
    self._head: list[Step] = []  # the circle's first T
    self._size = 0  # steps that were kept
    self._start = 0  # of the next sequence

  @property
  def needs_core(self) -> bool:
    """Whether a sequence starts at the next step, if its episode is kept."""
    return (self._size + len(self._game)) % self._stride == 0

  def append(self, step: Step) -> None:
    """Adds a step to the current episode."""
    self._game.append(step)

  def end_game(self, keep: bool) -> None:
    """Keeps or drops the current episode."""
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
  """Collects sequences in blocks, which `take` receives with their number.

  A block is reused after that.
  """

  def __init__(
    self,
    layout: blocks.UnrollLayout,
    take: Callable[[replay.Block, int], None],
  ):
    self.layout = layout
    self._take = take
    self._block = layout.new_block(_WIDTH)
    for leaf in self._block.leaves:
      leaf.fill(0)
    self._count = 0

  def add(self, env_id: int, sequence: Sequence[Step]) -> None:
    """Adds a sequence of an environment's T + 1 steps."""
    steps = map(np.stack, zip(*(s.leaves for s in sequence), strict=True))
    leaves = [*steps, *sequence[0].core, np.asarray(env_id)]
    self.layout.set_column(self._block, self._count, leaves)
    self._count += 1
    if self._count == _WIDTH:
      self.flush()

  def flush(self) -> None:
    """Passes on the last block."""
    if self._count:
      self._take(self._block, self._count)
    self._count = 0


class _GamePlacement(NamedTuple):
  """One batch of steps; see `worker.StepSink`."""

  env_id: np.ndarray
  core_rows: np.ndarray
  leaves: list[np.ndarray]


class GameRecorder:
  """A `worker.StepSink` that records the steps of episodes in a quota.

  `quota` must have each episode by the time its last step is recorded.
  """

  def __init__(
    self,
    sequences: SequenceBlocks,
    num_envs: int,
    quota: playing.EpisodeQuota,
    keep: Callable[[envs.Episode], bool],
  ):
    layout = sequences.layout
    self.kept: list[envs.Episode] = []
    self.num_envs = num_envs
    self._sequences = sequences
    self._quota = quota
    self._keep = keep
    self._seen = 0  # episodes of the quota
    self._num_steps_leaves = sum(layout.time_major)
    # All leaves but those of the steps and the environment's id.
    self._num_core_leaves = len(layout.specs) - self._num_steps_leaves - 1
    self._tapes = [self._make_tape(i) for i in range(num_envs)]
    # Whether the current episode counts.
    self._records = [quota.wants(i) for i in range(num_envs)]

  def _make_tape(self, env_id: int) -> Tape:
    layout = self._sequences.layout
    return Tape(
      layout.stride + layout.overlap,
      layout.stride,
      lambda sequence: self._sequences.add(env_id, sequence),
    )

  @property
  def waited(self) -> float:
    """Seconds that it blocked the worker: none."""
    return 0.0

  def begin(self, group: assembler.BatchedEnvs) -> _GamePlacement:
    env_id = group.env_id
    rows = [
      row
      for row, i in enumerate(env_id.tolist())
      if self._records[i] and self._tapes[i].needs_core
    ]
    return _GamePlacement(env_id, np.array(rows, np.int64), [])

  def write(self, placement: _GamePlacement, leaves: list[np.ndarray]) -> None:
    """See `UnrollAssembler.write`; skips the teacher's leaves in front."""
    placement.leaves.extend(leaves[-self._num_steps_leaves :])

  def finish(self, placement: _GamePlacement, core: list[np.ndarray]) -> None:
    """See `UnrollAssembler.finish`; a teacher's core state comes first."""
    own_core = core[len(core) - self._num_core_leaves :]
    starts = {row: i for i, row in enumerate(placement.core_rows.tolist())}
    for row, env_id in enumerate(placement.env_id.tolist()):
      if not self._records[env_id]:
        continue
      # Copies: a view would keep the batch's arrays alive.
      leaves = [
        np.array(x[row] if isinstance(x, np.ndarray) else x)
        for x in placement.leaves
      ]
      start = starts.get(row)
      before = [] if start is None else [np.array(x[start]) for x in own_core]
      self._tapes[env_id].append(Step(leaves, before))
    self._end_games()

  def reset(self, env_id: np.ndarray) -> None:
    """Does nothing: local environments never disconnect."""

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
