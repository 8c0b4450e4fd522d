"""The user's cache folder, and the compiled programs in it.

JAX's own variables come first: JAX_COMPILATION_CACHE_DIR names another folder
for programs, and JAX_ENABLE_COMPILATION_CACHE=0 keeps none.
"""

import contextlib
import hashlib
import os
import pathlib
import re
import warnings
from typing import Any

# Bytes of all kept programs. A run on CartPole has 1.5 MB.
_LIMIT = 1 << 30
_CPUINFO = pathlib.Path('/proc/cpuinfo')
# The lines that tell kinds of processors apart.
_PROCESSOR = re.compile(
  r'(vendor_id|cpu family|model|flags|Features|CPU (implementer|part))\s*:.*'
)


def folder() -> pathlib.Path:
  """Returns the user's cache folder, which need not exist."""
  if own := os.environ.get('SEEDRL_CACHE'):
    return pathlib.Path(own)
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(base, 'seedrl-jax')


def keep_compiled() -> None:
  """Makes JAX keep compiled programs, unless the user set its variables."""
  import jax

  config: Any = jax.config
  if (
    not config.jax_enable_compilation_cache or config.jax_compilation_cache_dir
  ):
    return
  # A folder that cannot be read or written costs a run only time.
  warnings.filterwarnings(
    'ignore', r'Error (reading|writing) persistent compilation cache'
  )
  with contextlib.suppress(OSError, RuntimeError):
    programs = folder() / f'jax-{_processor()}'
    # Whoever may write there can make our processes run what they like.
    programs.mkdir(mode=0o700, parents=True, exist_ok=True)
    prune(programs.parent)
    config.update('jax_compilation_cache_dir', str(programs))
    config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def prune(place: pathlib.Path, limit: int = _LIMIT) -> None:
  """Deletes least recently used programs below `place` beyond `limit` bytes."""
  found = [(p.stat(), p) for p in place.glob('jax-*/*-cache')]
  for stat, path in sorted(found, key=lambda f: f[0].st_atime, reverse=True):
    limit -= stat.st_size
    if limit < 0:
      path.unlink(missing_ok=True)


def _processor() -> str:
  # Programs use all instructions of a CPU, and machines may share a home.
  text = _CPUINFO.read_text().partition('\n\n')[0]
  lines = [line for line in text.splitlines() if _PROCESSOR.fullmatch(line)]
  return hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:12]
