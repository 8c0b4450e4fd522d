"""Reports for tests of writers, and writers of a user's own."""

from seedrl_jax.runtime.writers import base, metrics_log
from tests.patience import PATIENCE


def wait_long(monkeypatch):
  """Lets writers begin and close as slowly as on a busy machine."""
  for name in ('_OPEN_SECONDS', '_CLOSE_SECONDS'):
    monkeypatch.setattr(metrics_log, name, PATIENCE)


def row(updates, frames=None, **more):
  frames = 100 * updates if frames is None else frames
  return {'time/updates': updates, 'time/env_frames': frames, **more}


class Fragile(base.Writer):
  """Fails at what its class lists, and keeps the other rows."""

  fails_at = ()
  error = KeyError

  def __init__(self):
    self.calls = []

  def roll_back(self, updates, frames):
    self._tell('roll_back')

  def write(self, row):
    self._tell('write')

  def close(self):
    self._tell('close')

  def _tell(self, name):
    self.calls.append(name)
    if name in self.fails_at:
      raise self.error(name)


def fragile(workdir, config):
  return Fragile()


def refusing(workdir, config):
  raise OSError('no such place')


def forgetful(workdir, config):
  pass
