"""Tests for seedrl_jax/evaluation/video.py."""

import os
import pathlib
import subprocess
import sys

import chex
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory
from seedrl_jax.evaluation import playing, video
from tests.envs import streams


def _film(path: pathlib.Path, episodes: int = 1) -> video.VideoRecorder:
  """Films episodes of two environments, of six steps at 10 a second each."""
  section = streams.config(
    'Toy-v0', factory='tests.evaluation.evaluation_runs:chooser'
  )
  stream = factory.make_stream(section, 1, 2, 2, rendered=True)
  recorder = video.VideoRecorder(path, stream, 'auto')
  quota = playing.EpisodeQuota(2 * episodes, 2)
  observed = playing.ObservedStream(stream, quota, recorder)
  try:
    # One more episode than is to be filmed.
    streams.roll(observed, np.zeros((6 * episodes + 6, 2), np.int32))
    assert quota.is_met
  finally:
    recorder.close()
    observed.close()
  return recorder


@pytest.mark.parametrize(
  ('name', 'message'),
  [('a.avi', 'must end in'), ('a', 'must end in'), ('b/a.gif', 'no folder')],
)
def test_bad_path_is_refused(tmp_path, name, message):
  with pytest.raises(ValueError, match=message):
    video.check_path(tmp_path / name)
  video.check_path(tmp_path / 'a.GIF')


def test_mp4_without_ffmpeg_is_refused(tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', '')
  monkeypatch.setitem(sys.modules, 'imageio_ffmpeg', None)
  with pytest.raises(ValueError, match='there is no ffmpeg; install it or'):
    video.check_path(tmp_path / 'a.mp4')


def test_gif_has_frames_pace_and_hold(tmp_path):
  recorder = _film(tmp_path / 'a.gif', episodes=2)
  # The last frame of each stays for 0.7 s.
  assert recorder.num_frames == 2 * (6 + 7)
  with Image.open(recorder.path) as gif:
    # Equal frames are stored once and shown longer.
    assert (gif.n_frames, gif.info['duration']) == (2 * 6, 100)
    gif.seek(5)
    assert gif.info['duration'] == 800
    colour = gif.convert('RGB').getpixel((160, 150))
  assert colour == pytest.approx((200, 200, 200), abs=3)  # of a palette


def test_video_stops_when_it_is_full(tmp_path, monkeypatch):
  monkeypatch.setattr(video, 'MAX_FRAMES', 8)
  recorder = _film(tmp_path / 'a.gif')
  assert recorder.is_full and recorder.num_frames == 8


def test_mp4_has_frames_size_and_pace(tmp_path):
  files = os.listdir('/proc/self/fd')
  recorder = _film(tmp_path / 'a.mp4')
  assert os.listdir('/proc/self/fd') == files
  ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
  raw = ['-f', 'rawvideo', '-pix_fmt', 'rgb24', '-']
  read = subprocess.run(
    [ffmpeg, '-i', recorder.path, *raw], capture_output=True, check=True
  )
  assert b'320x268' in read.stderr and b' 10 fps' in read.stderr
  shown = np.frombuffer(read.stdout, np.uint8).reshape(-1, 268, 320, 3)
  assert len(shown) == recorder.num_frames
  np.testing.assert_allclose(shown[5, 40:], 200, atol=4)


def test_failing_ffmpeg_says_why(tmp_path, monkeypatch, capfd):
  program = tmp_path / 'ffmpeg'
  program.write_text('#!/bin/sh\necho no codec >&2\nexit 1\n')
  program.chmod(0o755)
  monkeypatch.setenv('PATH', str(tmp_path))
  with pytest.raises(ValueError, match=r'a.mp4: ffmpeg failed'):
    _film(tmp_path / 'a.mp4')
  assert capfd.readouterr().err == 'no codec\n'


def test_pixels_become_squares_under_a_caption_with_even_sides():
  small = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
  frame = video.framed(small, '')
  chex.assert_shape(frame, (28 + 240, 360, 3))
  np.testing.assert_array_equal(frame[28 + 119, 119], small[0, 0])
  np.testing.assert_array_equal(frame[28 + 120, 120], small[1, 1])
  large = np.full((241, 351, 3), 7, np.uint8)
  frame = video.framed(large, 'episode 1')
  chex.assert_shape(frame, (242 + 28, 352, 3))
  np.testing.assert_array_equal(frame[28:269, :351], large)
  assert frame[:28].max() == 255
  narrow = video.framed(np.full((480, 240, 3), 9, np.uint8), '')
  chex.assert_shape(narrow, (508, 320, 3))
  np.testing.assert_array_equal(narrow[28:, 40:280], 9)
  assert (narrow[28:, :40] == narrow[-1, -1]).all()


def test_observations_become_pictures():
  colour = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
  np.testing.assert_array_equal(video.picture_of(colour), colour)
  stacked = np.zeros((2, 2, 4), np.uint8)
  stacked[..., 3] = 50
  np.testing.assert_array_equal(video.picture_of(stacked), 50)
  shown = video.picture_of(np.array([[[0.0], [1.0]], [[2.0], [-1.0]]]))
  np.testing.assert_array_equal(shown[..., 0], [[0, 127], [255, 0]])


def test_quota_takes_each_environments_first_episodes():
  def episode(env_id: int, episode_return: float) -> envs.Episode:
    return envs.Episode(env_id, episode_return, 1, True)

  quota = playing.EpisodeQuota(episodes=3, num_envs=2)
  # Environment 1's second episode must not replace the other's.
  quota.add([episode(1, 10.0), episode(1, 11.0), episode(0, 1.0)])
  assert not quota.is_met
  assert [quota.wants(0), quota.wants(1)] == [True, False]
  quota.add([episode(1, 12.0), episode(0, 2.0), episode(0, 3.0)])
  assert quota.is_met
  assert [e.episode_return for e in quota.episodes] == [10.0, 1.0, 2.0]
