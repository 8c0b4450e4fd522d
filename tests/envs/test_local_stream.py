"""Tests of `seedrl_jax.envs.local_stream`."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base, local_stream, statistics

SPEC = base.StreamSpec(
  types.ArraySpec((), np.dtype('f4')), types.discrete(2), 4, 'Toy-v0'
)


def _mute(
  action: types.ActionSpec = SPEC.action, dtype: type = np.int32
) -> 'Mute':
  return Mute(SPEC._replace(action=action), np.dtype(dtype), 2, 2)


class Mute(local_stream.LocalStream):
  """A stream without environments; the test sets its score."""

  def recv(self) -> types.EnvOutput:
    self._check_open()
    raise AssertionError('nothing to receive')

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    self.sent = self._env_action(action, env_id)

  def close(self) -> None:
    self._closed = True


def test_score_counts_frames_and_losses(monkeypatch):
  monkeypatch.setattr(statistics, '_MOST_EPISODES', 1)
  stream = _mute()
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
  stream = _mute()
  stream.close()
  with pytest.raises(base.StreamClosed, match='stream of Toy-v0 is closed'):
    stream.recv()


def test_action_must_have_the_shape_of_the_ids():
  stream = _mute()
  stream.send(np.zeros(2), np.zeros(2))
  with pytest.raises(ValueError, match=r'action \(1,\) and env_id \(2,\)'):
    stream.send(np.zeros(1), np.zeros(2))


def test_continuous_actions_are_clipped_in_the_environments_dtype():
  low, high = (-1.0, -np.inf, 1 / 3), (1.0, 2.0, np.inf)
  action = types.ActionSpec((3,), np.dtype(np.float32), low, high)
  stream = _mute(action, np.float64)
  given = np.array([[-3, -1e9, 0], [0.5, 3, 1e9]], np.float32)
  stream.send(given, np.arange(2))
  expected = [[-1, -1e9, 1 / 3], [0.5, 2, 1e9]]
  np.testing.assert_array_equal(stream.sent, expected)
  assert stream.sent.dtype == np.float64 and given[0, 0] == -3


def test_discrete_actions_are_passed_on_as_they_are():
  stream = _mute()
  stream.send(np.array([1, 7], np.int32), np.arange(2))
  assert stream.sent.tolist() == [1, 7]
