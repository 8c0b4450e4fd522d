"""Records videos of episodes: MP4 through ffmpeg, or GIF through Pillow.

Frames are enlarged, under a line with the episode's number, return and length.
"""

import contextlib
import pathlib
import shutil
import subprocess
from collections.abc import Generator, Sequence
from typing import Any

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from seedrl_jax import types
from seedrl_jax.envs import base as envs
from seedrl_jax.networks import observations

# Two minutes of Atari. A GIF keeps its frames in memory until it is written.
MAX_FRAMES = 1800

# Pixels; a picture's shorter side is enlarged to at least the first.
_SMALL_SIDE = 240
_TEXT_WIDTH = 320
_BACKGROUND = (48, 48, 48)
_TEXT_HEIGHT = 28
_FONT_SIZE = 16
# Seconds that an episode's last picture stays.
_HOLD = 0.7

# Takes frames, uint8 `[H, W, 3]`, all of one size; H and W are even.
_Writer = Generator[None, Any, None]


def check_path(path: pathlib.Path) -> None:
  """Raises ValueError if a video of this name cannot be written."""
  flag, ending = f'--video={path}', path.suffix.lower()
  if ending not in ('.mp4', '.gif'):
    raise ValueError(f'{flag}: the name must end in .mp4 or .gif.')
  if not path.parent.is_dir():
    raise ValueError(f'{flag}: there is no folder {path.parent}.')
  if ending == '.mp4' and _find_ffmpeg() is None:
    raise ValueError(
      f'{flag}: there is no ffmpeg; install it or the Python package '
      'imageio-ffmpeg, or name a .gif.'
    )


class VideoRecorder:
  """Records the episodes of environment 0 of a `rendered` stream."""

  def __init__(
    self, path: pathlib.Path, stream: envs.LocalStream, image_layout: str
  ):
    """Needs a path that `check_path` accepts.

    `image_layout` is that of observations, shown if nothing is drawn.
    """
    self.path = path  # is written when it is closed
    self.num_frames = 0  # so far
    self._stream = stream
    self._layout = image_layout
    self._episode = 1
    # Made for the first frame.
    self._writer: _Writer | None = None

  @property
  def is_full(self) -> bool:
    """Whether further frames are left out."""
    return self.num_frames >= MAX_FRAMES

  def record(
    self, output: types.EnvOutput, ended: Sequence[envs.Episode]
  ) -> None:
    """Adds a step and the episodes it ended.

    Raises ValueError if there is no picture to show, or ffmpeg fails.
    """
    if self.is_full:
      return
    ends = [episode for episode in ended if episode.env_id == 0]
    episode = ends[0] if ends else self._stream.episode_so_far(0)
    text = (
      f'episode {self._episode}   return {episode.episode_return:g}   step '
      f'{episode.length}'
    )
    frame = framed(self._picture(output), text)
    rate = self._stream.steps_per_second
    if self._writer is None:
      write = _gif if self.path.suffix.lower() == '.gif' else _mp4
      self._writer = write(self.path, rate)
      self._writer.send(None)
    count = 1 + round(_HOLD * rate) if ends else 1
    for _ in range(min(count, MAX_FRAMES - self.num_frames)):
      self._writer.send(frame)
      self.num_frames += 1
    self._episode += bool(ends)

  def close(self) -> None:
    """Completes the file; raises ValueError if ffmpeg fails."""
    if self._writer is not None:
      self._writer.close()

  def _picture(self, output: types.EnvOutput) -> np.ndarray:
    drawn = self._stream.render(0)
    if drawn is not None:
      return drawn
    row = int(np.flatnonzero(output.env_id == 0)[0])
    leaves = [x[row] for x in jax.tree.leaves(output.observation)]
    images = [x for x in leaves if x.ndim in (2, 3, 4)]
    if not images:
      raise ValueError(
        f'--video: {self._stream.spec.name} cannot be drawn and its '
        'observation is no image; leave --video out.'
      )
    image = max(images, key=lambda x: x.size)
    return picture_of(observations.to_image(image, self._layout))


def _find_ffmpeg() -> str | None:
  if on_path := shutil.which('ffmpeg'):
    return on_path
  try:
    import imageio_ffmpeg

    return imageio_ffmpeg.get_ffmpeg_exe()
  # Not installed, or without a program for this platform.
  except (ImportError, RuntimeError):
    return None


def _mp4(path: pathlib.Path, rate: float) -> _Writer:
  """Pipes the frames that it is sent into ffmpeg, which says what fails."""
  frame = yield
  program = [str(_find_ffmpeg()), '-y', '-loglevel', 'error']
  raw = ['-f', 'rawvideo', '-pix_fmt', 'rgb24', '-r', f'{rate:g}']
  size = ['-s', f'{frame.shape[1]}x{frame.shape[0]}', '-i', '-']
  # yuv420p is what browsers play.
  target = ['-pix_fmt', 'yuv420p', '-movflags', '+faststart', str(path)]
  process = subprocess.Popen(
    [*program, *raw, *size, *target], stdin=subprocess.PIPE
  )
  assert process.stdin is not None
  with contextlib.suppress(BrokenPipeError, GeneratorExit), process:
    while True:
      process.stdin.write(frame.tobytes())
      frame = yield
  if process.returncode:
    raise ValueError(f'--video={path}: ffmpeg failed, as it says above.')


def _gif(path: pathlib.Path, rate: float) -> _Writer:
  """Writes the frames that it is sent when it is closed."""
  frames: list[Image.Image] = []
  try:
    while True:
      frame = yield
      # A third of the memory while all frames wait.
      image = Image.fromarray(frame)
      frames.append(image.quantize(method=Image.Quantize.FASTOCTREE))
  finally:
    # A GIF has hundredths of a second, and viewers slow down below two.
    milliseconds = max(20, round(100 / rate) * 10)
    first, *others = frames
    first.save(
      path, save_all=True, append_images=others, duration=milliseconds, loop=0
    )


def picture_of(image: np.ndarray) -> np.ndarray:
  """Returns an observation as a picture, uint8 `[H, W, 3]`, RGB.

  `image` is `[H, W, C]`; uint8, or any dtype from 0 (black) to its largest
  (white). If C is not 3, the last, the newest of stacked frames, is shown.
  """
  if image.dtype != np.uint8:
    scaled = image.astype(np.float32) / max(float(image.max()), 1e-6)
    image = (np.clip(scaled, 0, 1) * 255).astype(np.uint8)
  return image if image.shape[-1] == 3 else np.repeat(image[..., -1:], 3, -1)


def framed(picture: np.ndarray, text: str) -> np.ndarray:
  """Returns a picture, uint8 `[H, W, 3]`, enlarged, under a line of text.

  Height and width are even, as video encoders need them.
  """
  image = Image.fromarray(picture)
  factor = max(1, -(-_SMALL_SIDE // min(image.size)))
  image = ImageOps.scale(image, factor, Image.Resampling.NEAREST)
  width, height = max(image.width, _TEXT_WIDTH), image.height + _TEXT_HEIGHT
  size = (width + width % 2, height + height % 2)
  canvas = Image.new('RGB', size, _BACKGROUND)
  canvas.paste(image, ((canvas.width - image.width) // 2, _TEXT_HEIGHT))
  ImageDraw.Draw(canvas).text(
    (8, _TEXT_HEIGHT // 2),
    text,
    fill=(255, 255, 255),
    font=ImageFont.load_default(_FONT_SIZE),
    anchor='lm',
  )
  return np.asarray(canvas)
