"""Tests for seedrl_jax/demonstrations/tape.py."""

import itertools

import numpy as np
import pytest

from seedrl_jax.demonstrations import tape as tape_lib
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import playing
from seedrl_jax.inference import assembler
from seedrl_jax.replay import blocks
from tests.learner import toys


def _tape(length: int, stride: int):
  """A tape of sequences of `length` steps, and its emitted numbers."""
  sequences: list[list[int]] = []

  def emit(steps):
    # The core state before the first step.
    assert steps[0].core == [np.int64(steps[0].leaves[0])]
    sequences.append([int(step.leaves[0]) for step in steps])

  return tape_lib.Tape(length, stride, emit), sequences


def _play(tape: tape_lib.Tape, *numbers: int, keep: bool = True) -> None:
  for number in numbers:
    value = np.int64(number)
    core = [value] if tape.needs_core else []
    tape.append(tape_lib.Step([value], core))
  tape.end_game(keep)


def test_sequences_overlap_and_close_the_circle():
  tape, sequences = _tape(length=5, stride=3)
  _play(tape, *range(4))
  assert sequences == []
  _play(tape, *range(4, 9))
  assert sequences == [[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]
  tape.close()
  # Each of nine steps is among the first three of one sequence.
  assert sequences[2:] == [[6, 7, 8, 0, 1]]


def test_a_rejected_game_leaves_no_step_behind():
  tape, sequences = _tape(length=4, stride=2)
  _play(tape, 0, 1, 2)
  _play(tape, 90, 91, 92, 93, 94, keep=False)
  _play(tape, 3, 4, 5)
  _play(tape, 95, 96, keep=False)
  tape.close()
  assert sequences == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 0, 1]]


def test_the_only_games_shorter_than_a_sequence_repeat():
  tape, sequences = _tape(length=7, stride=6)
  _play(tape, 0, 1, 2)
  tape.close()
  assert sequences == [[0, 1, 2, 0, 1, 2, 0]]


@pytest.mark.parametrize('stride', [1, 3, 4])
@pytest.mark.parametrize('size', [1, 5, 11])
def test_every_step_is_trained_on(stride, size):
  tape, sequences = _tape(length=5, stride=stride)
  for number in range(size):
    _play(tape, number)
  tape.close()
  trained = [n for s in sequences for n in s[:stride]]
  assert trained[:size] == list(range(size))
  # And not much more than once.
  assert len(trained) < size + stride
  for first, second in itertools.pairwise(sequences):
    assert first[stride:] == second[: 5 - stride]


def test_without_a_kept_game_there_is_no_sequence():
  tape, sequences = _tape(length=3, stride=1)
  _play(tape, 0, 1, 2, 3, keep=False)
  tape.close()
  assert sequences == []


def _episode(env_id: int, score: float) -> envs.Episode:
  return envs.Episode(env_id, score, 1, 1, True)


class _Recording:
  """A recorder of two environments, T = 2; numbers stand for steps."""

  def __init__(self, episodes: int):
    layout = blocks.UnrollLayout(toys.unroll_spec(3))
    self.quota = playing.EpisodeQuota(episodes, 2)
    self.sequences: list[tuple[int, list[float]]] = []

    def take(block, count):
      for column in range(count):
        rewards = block.unroll.steps.reward[:, column].tolist()
        self.sequences.append((int(block.unroll.env_id[column]), rewards))

    self.recorder = tape_lib.GameRecorder(
      tape_lib.SequenceBlocks(layout, take),
      num_envs=2,
      quota=self.quota,
      keep=lambda episode: episode.episode_return >= 0,
    )

  def step(self, *numbers: float, ended: tuple[envs.Episode, ...] = ()) -> None:
    self.quota.add(ended)
    rewards = np.array(numbers, np.float32)
    placement = self.recorder.begin(
      assembler.BatchedEnvs(np.arange(2), slice(2))
    )
    zeros = np.zeros(2, np.int32)
    # The first leaf is the teacher's.
    leaves = [rewards + 9, zeros, rewards, rewards, zeros, zeros, -1]
    self.recorder.write(placement, leaves)
    self.recorder.finish(placement, [])


def test_games_are_kept_by_their_return():
  recording = _Recording(episodes=4)
  recording.step(1, 11)
  recording.step(2, 12, ended=(_episode(1, -1.0),))
  recording.step(3, 13, ended=(_episode(0, 0.0),))
  recording.step(4, 14, ended=(_episode(0, 5.0), _episode(1, 1.0)))
  recording.recorder.close()
  assert sorted(recording.sequences) == [
    (0, [1, 2, 3]),
    (0, [3, 4, 1]),
    (1, [13, 14, 13]),
  ]
  assert [e.episode_return for e in recording.recorder.kept] == [0.0, 5.0, 1.0]


def test_what_is_played_beyond_the_quota_is_not_recorded():
  recording = _Recording(episodes=2)
  recording.step(1, 11, ended=(_episode(0, 0.0),))
  recording.step(2, 12, ended=(_episode(0, 0.0),))
  recording.step(3, 13, ended=(_episode(1, 0.0),))
  recording.recorder.close()
  assert sorted(recording.sequences) == [
    (0, [1, 1, 1]),
    (1, [11, 12, 13]),
    (1, [13, 11, 12]),
  ]
