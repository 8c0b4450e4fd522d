"""Tests for seedrl_jax/demonstrations/tape.py."""

import itertools

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.demonstrations import tape, teacher
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import playing
from seedrl_jax.inference import assembler, specs
from seedrl_jax.replay import blocks
from tests.inference import assembly

_NUMBER = types.ArraySpec((), np.dtype(np.float32))


class _Recording:
  """A recorder of steps that are numbers, and its sequences of these."""

  def __init__(self, length: int, stride: int, num_envs: int = 1, quota=99):
    unrolls = []
    # The student alone, and beside a teacher.
    for number in (_NUMBER, teacher.Pair(_NUMBER, _NUMBER)):
      env = types.StreamSpec(number, types.discrete(2), 1, 'Numbers')
      unrolls.append(specs.unroll_spec(env, length - 1, (), number))
    layout = blocks.UnrollLayout(unrolls[0], overlap=length - stride)
    self.sequences: list[list[float]] = []
    self.quota = playing.EpisodeQuota(quota, num_envs)
    self.recorder = tape.GameRecorder(
      assembly.Writer(lambda: layout.new_block(1), self._insert),
      layout,
      unrolls[1],
      self.quota,
      num_envs,
      min_return=0.0,
    )
    ids = np.arange(num_envs)
    self._group = assembler.EnvGroup(ids, slice(num_envs))

  def _insert(self, block) -> None:
    numbers = block.unroll.steps.observation[:, 0].tolist()
    assert block.unroll.initial_core[0] == numbers[0]
    assert block.unroll.env_id[0] == numbers[0] // 100
    self.sequences.append(numbers)

  def step(self, *numbers: int, ended: dict[int, float] | None = None) -> None:
    """Records a step of each environment; `ended` maps some to returns."""
    self.quota.add([
      envs.Episode(env_id, score, 1, True)
      for env_id, score in (ended or {}).items()
    ])
    values = np.array(numbers, np.float32)
    zeros = np.zeros(len(numbers), np.int32)
    self.recorder.record(
      self._group,
      [values + 9, values, values, zeros, zeros, zeros, -1],
      lambda rows: [values[rows] + 9, values[rows]],
    )

  def play(self, *numbers: int, score: float = 0.0) -> None:
    for number in numbers[:-1]:
      self.step(number)
    self.step(numbers[-1], ended={0: score})


def test_sequences_overlap_and_close_the_circle():
  recording = _Recording(length=5, stride=3)
  recording.play(*range(4))
  assert recording.sequences == []
  recording.play(*range(4, 9))
  assert recording.sequences == [[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]
  recording.recorder.close()
  # Each of nine steps is among the first three of one sequence.
  assert recording.sequences[2:] == [[6, 7, 8, 0, 1]]


def test_games_are_kept_by_their_return():
  recording = _Recording(length=4, stride=2)
  recording.play(0, 1, 2)
  recording.play(90, 91, 92, 93, 94, score=-1)
  recording.play(3, 4, 5, score=5)
  recording.play(95, 96, score=-2)
  recording.recorder.close()
  assert recording.sequences == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 0, 1]]
  assert [e.episode_return for e in recording.recorder.episodes] == [0, 5]


@pytest.mark.parametrize('stride', [1, 3, 4])
@pytest.mark.parametrize('size', [1, 5, 11])
def test_every_step_is_trained_on(stride, size):
  recording = _Recording(length=5, stride=stride)
  for number in range(size):
    recording.play(number)
  recording.recorder.close()
  trained = [n for s in recording.sequences for n in s[:stride]]
  assert trained[:size] == list(range(size))
  # And not much more than once.
  assert len(trained) < size + stride
  for first, second in itertools.pairwise(recording.sequences):
    assert first[stride:] == second[: 5 - stride]


def test_what_is_played_beyond_the_quota_is_not_recorded():
  recording = _Recording(length=3, stride=2, num_envs=2, quota=2)
  recording.step(1, 101, ended={0: 0.0})
  recording.step(2, 102, ended={0: 0.0})
  recording.step(3, 103, ended={1: 0.0})
  recording.recorder.close()
  expected = [[1, 1, 1], [101, 102, 103], [103, 101, 102]]
  assert sorted(recording.sequences) == expected
