"""The software that a run starts with."""

import datetime
import importlib.metadata
import pathlib
import platform
import subprocess

_PACKAGES = ('seedrl-jax', 'jax', 'jaxlib', 'envpool')
_ROOT = pathlib.Path(__file__).resolve().parents[2]
_GIT = ('git', 'describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')


def current() -> dict[str, str | None]:
  """Returns the time, the git commit and each package's version.

  A missing package's version is None, as is the commit outside a clone.
  """
  now = datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
  versions = {
    'time': now,
    'commit': _commit(_ROOT),
    'python': platform.python_version(),
  }
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = None
  return versions


def _commit(root: pathlib.Path) -> str | None:
  # Git would find the clone of another project around an installed package.
  if not (root / '.git').exists():
    return None
  try:
    return subprocess.run(
      _GIT, cwd=root, capture_output=True, check=True, text=True, timeout=2
    ).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None
