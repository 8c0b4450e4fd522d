"""Finds and keeps a Reverb server's checkpoints.

dm-reverb 0.14.0 deletes all but its newest checkpoint from its folder, so a
server writes to a folder of its own and `keep` moves its checkpoints.
"""

import os
import pathlib
import shutil
import tempfile

_DONE = 'DONE'


def is_complete(path: str | os.PathLike[str]) -> bool:
  """Returns whether `path` is a completely written checkpoint."""
  return pathlib.Path(path, _DONE).is_file()


def newest_first(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
  """Returns the complete checkpoints in `folder`, which may be absent."""
  folders = [
    done.parent for done in pathlib.Path(folder).glob(f'[!.]*/{_DONE}')
  ]
  # Reverb names them by local time, which does not sort.
  return sorted(
    folders, key=lambda path: (path / _DONE).stat().st_mtime_ns, reverse=True
  )


def keep(written: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
  """Moves a checkpoint to `path`, where it appears complete, replacing any."""
  target = pathlib.Path(path)
  target.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
    prefix=f'.{target.name}.', dir=target.parent
  ) as scratch:
    # Copies if `written` is on another file system.
    arrived = shutil.move(written, pathlib.Path(scratch, 'new'))
    if target.exists():
      os.rename(target, pathlib.Path(scratch, 'old'))
    os.rename(arrived, target)
