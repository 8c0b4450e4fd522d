"""Where things are kept that are made once for a user's runs.

`replay.reverb.environment` keeps Reverb's environment there, and
`runtime.compilation_cache` compiled programs.
"""

import os
import pathlib


def path() -> pathlib.Path:
  """Returns the user's folder; it need not exist."""
  if folder := os.environ.get('SEEDRL_CACHE'):
    return pathlib.Path(folder)
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(base, 'seedrl-jax')
