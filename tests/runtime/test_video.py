"""Tests for seedrl_jax/runtime/video.py."""

import os
import pathlib
import sys
import types

import chex
import numpy as np
import pytest
from PIL import Image

from seedrl_jax.runtime import video

# Writes a line of its arguments, then its input, to the file named last.
_KEEPING = """#!/bin/sh
for last; do :; done
echo "$*" > "$last"
/bin/cat >> "$last"
"""
_FAILING = '#!/bin/sh\necho "no such codec" >&2\nexit 1\n'
_SIZE = (268, 320)  # of a 6 x 8 picture: 40 times as large, a line above it


def _picture(value: int = 0) -> np.ndarray:
  return np.full((6, 8, 3), value, np.uint8)


def _install_ffmpeg(folder: pathlib.Path, text: str, monkeypatch) -> None:
  folder.mkdir()
  program = folder / 'ffmpeg'
  program.write_text(text)
  program.chmod(0o755)
  monkeypatch.setenv('PATH', str(folder))


@pytest.mark.parametrize('name', ['a.mp4', 'a.gif', 'a.GIF'])
def test_endings_that_will_do(tmp_path, name):
  video.check_path(tmp_path / name)


@pytest.mark.parametrize(
  ('name', 'message'),
  [('a.avi', 'must end in'), ('a', 'must end in'), ('b/a.gif', 'no folder')],
)
def test_bad_path_is_refused(tmp_path, name, message):
  with pytest.raises(video.VideoError, match=message):
    video.EpisodeVideo(tmp_path / name, 10.0)


def test_gif_has_frames_pace_and_hold(tmp_path):
  recording = video.EpisodeVideo(tmp_path / 'a.gif', 20.0)
  recording.append(_picture(0), 0.0, 0, ends=False)
  recording.append(_picture(200), 1.0, 1, ends=True)
  recording.close()
  assert recording.num_frames == 2 + 14
  with Image.open(recording.path) as gif:
    assert (gif.height, gif.width) == _SIZE
    assert gif.n_frames == 2
    assert gif.info['duration'] == 50
    gif.seek(1)
    assert gif.info['duration'] == 15 * 50
    colour = gif.convert('RGB').getpixel((160, 150))
    assert colour == pytest.approx((200, 200, 200), abs=2)  # of a palette


def test_video_stops_when_it_is_full(tmp_path, monkeypatch):
  monkeypatch.setattr(video, 'MAX_FRAMES', 3)
  recording = video.EpisodeVideo(tmp_path / 'a.gif', 10.0)
  recording.append(_picture(), 0.0, 0, ends=False)
  assert not recording.is_full
  recording.append(_picture(), 0.0, 1, ends=True)
  assert recording.is_full
  assert recording.num_frames == 3


def test_video_without_frames_leaves_no_file(tmp_path):
  video.EpisodeVideo(tmp_path / 'a.gif', 10.0).close()
  assert not any(tmp_path.iterdir())


def test_mp4_pipes_raw_frames_into_ffmpeg(tmp_path, monkeypatch):
  _install_ffmpeg(tmp_path / 'bin', _KEEPING, monkeypatch)
  files = os.listdir('/proc/self/fd')
  recording = video.EpisodeVideo(tmp_path / 'a.mp4', 12.5)
  for step in range(2):
    recording.append(_picture(100), 0.0, step, ends=False)
  recording.close()
  assert os.listdir('/proc/self/fd') == files
  arguments, _, frames = recording.path.read_bytes().partition(b'\n')
  assert recording.remark == ''
  assert b'-pix_fmt rgb24 -s 320x268 -r 12.5 -i -' in arguments
  shown = np.frombuffer(frames, np.uint8).reshape(2, *_SIZE, 3)
  np.testing.assert_array_equal(shown[:, -240:], 100)


def test_failing_ffmpeg_is_one_sentence(tmp_path, monkeypatch):
  _install_ffmpeg(tmp_path / 'bin', _FAILING, monkeypatch)
  recording = video.EpisodeVideo(tmp_path / 'a.mp4', 10.0)

  # A frame or the end may meet the closed pipe.
  def record():
    recording.append(_picture(), 0.0, 0, ends=False)
    recording.close()

  with pytest.raises(video.VideoError, match=r'ffmpeg failed \(no such codec'):
    record()


def test_without_encoder_a_gif_is_written_and_said(tmp_path, monkeypatch):
  monkeypatch.setattr(video, 'find_ffmpeg', lambda: None)
  recording = video.EpisodeVideo(tmp_path / 'a.mp4', 10.0)
  recording.append(_picture(), 0.0, 0, ends=False)
  recording.close()
  assert recording.path == tmp_path / 'a.gif'
  assert recording.path.read_bytes().startswith(b'GIF8')
  assert 'install ffmpeg' in recording.remark


def test_ffmpeg_is_that_of_the_path_or_of_the_package(tmp_path, monkeypatch):
  package = types.ModuleType('imageio_ffmpeg')
  package.get_ffmpeg_exe = lambda: 'packaged'
  monkeypatch.setenv('PATH', '')
  monkeypatch.setitem(sys.modules, 'imageio_ffmpeg', None)
  assert video.find_ffmpeg() is None
  monkeypatch.setitem(sys.modules, 'imageio_ffmpeg', package)
  assert video.find_ffmpeg() == 'packaged'
  _install_ffmpeg(tmp_path / 'bin', _KEEPING, monkeypatch)
  assert video.find_ffmpeg() == str(tmp_path / 'bin' / 'ffmpeg')


def test_enlarged_pixels_are_squares():
  picture = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
  large = video.enlarged(picture)
  chex.assert_shape(large, (240, 360, 3))
  np.testing.assert_array_equal(large[119, 119], picture[0, 0])
  np.testing.assert_array_equal(large[120, 120], picture[1, 1])


def test_large_pictures_stay():
  chex.assert_shape(video.enlarged(np.zeros((400, 600, 3))), (400, 600, 3))


def test_caption_is_above_and_sides_are_even():
  picture = np.full((241, 351, 3), 7, np.uint8)
  frame = video.captioned(picture, 'episode 1')
  chex.assert_shape(frame, (242 + 28, 352, 3))
  np.testing.assert_array_equal(frame[28:269, :351], picture)
  assert frame[:28].max() == 255


def test_narrow_picture_is_centred():
  frame = video.captioned(np.full((240, 120, 3), 9, np.uint8), '')
  chex.assert_shape(frame, (268, 320, 3))
  np.testing.assert_array_equal(frame[28:, 100:220], 9)
  assert (frame[28:, :100] == frame[-1, -1]).all()


def test_colour_observation_is_itself():
  image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
  np.testing.assert_array_equal(video.picture_of(image), image)


def test_newest_of_stacked_frames_is_shown():
  image = np.zeros((2, 2, 4), np.uint8)
  image[..., 3] = 50
  shown = video.picture_of(image)
  chex.assert_shape(shown, (2, 2, 3))
  np.testing.assert_array_equal(shown, 50)


def test_other_numbers_are_scaled_to_their_largest():
  shown = video.picture_of(np.array([[0.0, 1.0], [2.0, -1.0]]))
  np.testing.assert_array_equal(shown[..., 0], [[0, 127], [255, 0]])
