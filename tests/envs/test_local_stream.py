"""Tests of `seedrl_jax.envs.local_stream`."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base, local_stream, statistics

SPEC = base.StreamSpec(
  types.ArraySpec((), np.dtype('f4')), types.discrete(2), 4, 'Toy-v0'
)


class Mute(local_stream.LocalStream):
  """Says nothing; its score is set by the test."""

  def recv(self) -> types.EnvOutput:
    self._check_open()
    raise AssertionError('nothing to receive')

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    self._check_action(action, env_id)

  def close(self) -> None:
    self._closed = True


def test_score_counts_frames_and_losses():
  stream = Mute(SPEC, 1, 1)
  stream._statistics.log = statistics.EpisodeLog(max_size=1)
  for _ in range(2):
    for last in (False, True):
      stream._statistics.update(
        np.zeros(1, np.int32),
        np.full(1, last, np.float32),
        np.array([last]),
        np.array([last]),
      )
  assert stream.dropped_episodes == 1
  assert stream.take_episodes() == [base.Episode(0, 1.0, 1, 4, False)]


def test_closed_stream_names_itself():
  stream = Mute(SPEC, 1, 1)
  stream.close()
  with pytest.raises(base.StreamClosed, match='stream of Toy-v0 is closed'):
    stream.recv()


def test_action_must_have_the_shape_of_the_ids():
  stream = Mute(SPEC, 2, 2)
  stream.send(np.zeros(2), np.zeros(2))
  with pytest.raises(ValueError, match=r'action \(1,\) and env_id \(2,\)'):
    stream.send(np.zeros(1), np.zeros(2))
