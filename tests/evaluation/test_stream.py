"""Tests for seedrl_jax/evaluation/stream.py."""

import numpy as np
import pytest

from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory
from seedrl_jax.evaluation import stream as stream_lib
from seedrl_jax.runtime import video
from tests.envs import streams


def _episode(env_id: int, episode_return: float) -> envs.Episode:
  return envs.Episode(env_id, episode_return, 1, 1, True)


def test_quota_takes_each_environments_first_episodes():
  quota = stream_lib.EpisodeQuota(episodes=3, num_envs=2)
  # Environment 1's second episode must not replace the other's.
  quota.add([_episode(1, 10.0), _episode(1, 11.0), _episode(0, 1.0)])
  assert not quota.is_met
  assert [quota.wants(0), quota.wants(1)] == [True, False]
  quota.add([_episode(1, 12.0), _episode(0, 2.0), _episode(0, 3.0)])
  assert quota.is_met
  assert [e.episode_return for e in quota.episodes] == [10.0, 1.0, 2.0]


@pytest.mark.parametrize(
  ('episodes', 'num_envs', 'shares'),
  [(6, 3, [2, 2, 2]), (5, 3, [2, 2, 1]), (1, 1, [1])],
)
def test_quota_is_divided_evenly(episodes, num_envs, shares):
  quota = stream_lib.EpisodeQuota(episodes, num_envs)
  for _ in range(episodes + 1):
    quota.add([_episode(i, 0.0) for i in range(num_envs)])
  assert len(quota.episodes) == episodes
  of = [e.env_id for e in quota.episodes]
  assert [of.count(i) for i in range(num_envs)] == shares


def test_wrapped_stream_forwards_what_has_a_default(monkeypatch):
  stream = streams.make(streams.toy('scripted'), num_envs=5, batch_size=3)
  monkeypatch.setattr(stream, 'take_dropped', lambda: np.array([4]))
  wrapped = stream_lib.WrappedStream(stream)
  assert wrapped.min_batch_size == 2
  assert wrapped.take_dropped() == [4]
  wrapped.close()


def test_recording_ends_with_the_first_environments_share(tmp_path):
  section = streams.config(
    'Toy-v0', factory='tests.evaluation.evaluation_runs:chooser'
  )
  stream = factory.make_stream(section, 1, 2, 2, rendered=True)
  recording = video.EpisodeVideo(tmp_path / 'a.gif', 1.0)
  quota = stream_lib.EpisodeQuota(2, 2)
  observed = stream_lib.ObservedStream(
    stream, quota, stream_lib.VideoRecorder(stream, recording, 'auto')
  )
  # Each plays two episodes of six outputs; only one of each counts.
  streams.roll(observed, np.zeros((12, 2), np.int32))
  assert quota.is_met
  assert recording.num_frames == 6 + 1  # the last one stays for 0.7 s
  observed.close()
  assert recording.path.exists()
