"""Writes videos of episodes: MP4 through ffmpeg, or GIF through Pillow.

Frames are enlarged, under a line with the episode's number, return and length.
"""

import pathlib
import shutil
import subprocess
import tempfile

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Two minutes of Atari. A GIF keeps its frames in memory until it is written.
MAX_FRAMES = 1800
ENDINGS = ('.mp4', '.gif')

# Pixels; a picture's shorter side is enlarged to at least the first.
_SMALL_SIDE = 240
_TEXT_WIDTH = 320
_BACKGROUND = (48, 48, 48)
_TEXT_HEIGHT = 28
_FONT_SIZE = 16
# Seconds that an episode's last picture stays.
_HOLD = 0.7


class VideoError(ValueError):
  """The video cannot be made."""


def check_path(path: pathlib.Path) -> None:
  """Raises VideoError if the path has another ending or no folder."""
  if path.suffix.lower() not in ENDINGS:
    raise VideoError(
      f'--video={path}: the name must end in {" or ".join(ENDINGS)}.'
    )
  if not path.parent.is_dir():
    raise VideoError(f'--video={path}: there is no folder {path.parent}.')


def find_ffmpeg() -> str | None:
  """Returns the ffmpeg on the PATH, else that of `imageio-ffmpeg`, or None."""
  on_path = shutil.which('ffmpeg')
  if on_path is not None:
    return on_path
  try:
    import imageio_ffmpeg

    return imageio_ffmpeg.get_ffmpeg_exe()
  # Not installed, or without a program for this platform.
  except (ImportError, RuntimeError):
    return None


class _Gif:
  """Writes frames, uint8 `[H, W, 3]`, all of one size, as a GIF."""

  def __init__(self, path: pathlib.Path, frames_per_second: float):
    self._path = path
    # A GIF has hundredths of a second, and viewers slow down below two.
    self._milliseconds = max(20, round(100 / frames_per_second) * 10)
    self._frames: list[Image.Image] = []

  def append(self, frame: np.ndarray) -> None:
    # A third of the memory while all frames wait.
    image = Image.fromarray(frame)
    self._frames.append(image.quantize(method=Image.Quantize.FASTOCTREE))

  def close(self) -> None:
    if self._frames:
      self._frames[0].save(
        self._path,
        save_all=True,
        append_images=self._frames[1:],
        duration=self._milliseconds,
        loop=0,
      )


class _Mp4:
  """Pipes frames, uint8 `[H, W, 3]`, H and W even, into ffmpeg."""

  def __init__(self, path: pathlib.Path, frames_per_second: float, ffmpeg: str):
    self._path = path
    self._rate = frames_per_second
    self._ffmpeg = ffmpeg
    self._process: subprocess.Popen[bytes] | None = None

  def append(self, frame: np.ndarray) -> None:
    # The first frame's size is the video's.
    if self._process is None:
      self._process = self._start(frame.shape[1], frame.shape[0])
    assert self._process.stdin is not None
    try:
      self._process.stdin.write(frame.tobytes())
    except BrokenPipeError as e:
      self.close()
      raise VideoError(f'--video={self._path}: ffmpeg stopped early.') from e

  def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
    raw = ['-f', 'rawvideo', '-pix_fmt', 'rgb24', '-s', f'{width}x{height}']
    # yuv420p is what browsers play.
    target = ['-an', '-pix_fmt', 'yuv420p', '-movflags', '+faststart']
    # A full pipe would block ffmpeg.
    self._messages = tempfile.TemporaryFile()  # noqa: SIM115
    return subprocess.Popen(
      [
        *[self._ffmpeg, '-y', '-loglevel', 'error'],
        *[*raw, '-r', f'{self._rate:g}', '-i', '-'],
        *[*target, str(self._path)],
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      stderr=self._messages,
    )

  def close(self) -> None:
    if self._process is None:
      return
    process, self._process = self._process, None
    process.communicate()
    with self._messages as messages:
      messages.seek(0)
      said = messages.read().decode(errors='replace').split('\n')
    if process.returncode:
      raise VideoError(
        f'--video={self._path}: ffmpeg failed ({said[0].strip()}).'
      )


class EpisodeVideo:
  """A video of one environment's episodes.

  Attributes:
    path: the file that is written; a GIF if there is no ffmpeg.
    remark: a sentence for the user if the path differs from the one given.
    num_frames: frames so far.
  """

  def __init__(self, path: pathlib.Path, frames_per_second: float):
    """Starts a video; raises VideoError as `check_path`."""
    check_path(path)
    self.path = path
    self.remark = ''
    self.num_frames = 0
    self._episode = 1
    self._hold = round(_HOLD * frames_per_second)
    self._encoder: _Mp4 | _Gif
    if path.suffix.lower() == '.mp4':
      if ffmpeg := find_ffmpeg():
        self._encoder = _Mp4(path, frames_per_second, ffmpeg)
        return
      self.path = path.with_suffix('.gif')
      self.remark = (
        'This is a GIF, as there is no ffmpeg to write MP4 with; install '
        'ffmpeg or the Python package imageio-ffmpeg.'
      )
    self._encoder = _Gif(self.path, frames_per_second)

  @property
  def is_full(self) -> bool:
    """Whether further frames are left out."""
    return self.num_frames >= MAX_FRAMES

  def append(
    self, picture: np.ndarray, episode_return: float, length: int, ends: bool
  ) -> None:
    """Adds a step with the episode's return and length in steps so far.

    Args:
      picture: uint8 `[H, W, 3]`, RGB.
      ends: whether the episode ends here.

    Raises:
      VideoError: if the encoder fails.
    """
    text = (
      f'episode {self._episode}   return {episode_return:g}   step {length}'
    )
    frame = captioned(enlarged(picture), text)
    for _ in range(1 + ends * self._hold):
      if not self.is_full:
        self._encoder.append(frame)
        self.num_frames += 1
    self._episode += ends

  def close(self) -> None:
    """Completes the file; raises VideoError if the encoder fails."""
    self._encoder.close()


def picture_of(image: np.ndarray) -> np.ndarray:
  """Returns an observation as a picture, uint8 `[H, W, 3]`, RGB.

  `image` is `[H, W]` or `[H, W, C]`; uint8, or any dtype from 0 (black) to its
  largest value (white). If C is not 3, the last channel, the newest of stacked
  frames, is shown.
  """
  if image.dtype != np.uint8:
    scaled = image.astype(np.float32) / max(float(image.max()), 1e-6)
    image = (np.clip(scaled, 0, 1) * 255).astype(np.uint8)
  if image.ndim == 2 or image.shape[-1] != 3:
    grey = image if image.ndim == 2 else image[..., -1]
    image = np.repeat(grey[..., None], 3, axis=-1)
  return image


def enlarged(picture: np.ndarray) -> np.ndarray:
  """Returns a picture, uint8 `[H, W, 3]`, with each pixel made a square."""
  factor = max(1, -(-_SMALL_SIDE // min(picture.shape[:2])))
  return picture.repeat(factor, axis=0).repeat(factor, axis=1)


def captioned(picture: np.ndarray, text: str) -> np.ndarray:
  """Returns a picture, uint8 `[H, W, 3]`, under a line of text.

  Its height and width are even, as video encoders need them.
  """
  height, width = picture.shape[:2]
  wide = max(width, _TEXT_WIDTH)
  size = (wide + wide % 2, height + height % 2 + _TEXT_HEIGHT)
  canvas = Image.new('RGB', size, _BACKGROUND)
  canvas.paste(Image.fromarray(picture), ((size[0] - width) // 2, _TEXT_HEIGHT))
  ImageDraw.Draw(canvas).text(
    (8, _TEXT_HEIGHT // 2),
    text,
    fill=(255, 255, 255),
    font=ImageFont.load_default(_FONT_SIZE),
    anchor='lm',
  )
  return np.asarray(canvas)
