"""Opens a run's writers, and keeps the run from failing with one."""

import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence

import ml_collections

from seedrl_jax.runtime import settings
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.runtime.writers import base

# Makes the writer of a work directory and its configuration.
Make = Callable[[pathlib.Path, ml_collections.ConfigDict], base.Writer]

_FLAG = '--config.log.writers'
_OPTIONAL = ('wandb', 'mlflow')


class NotOpened(RuntimeError):
  """A writer could not begin."""


def load(names: Sequence[str]) -> dict[str, Make]:
  """Returns the functions that make the named writers.

  Raises:
    ValueError: if there is none; names the flag.
  """
  for name in names:
    if name in _OPTIONAL and importlib.util.find_spec(name) is None:
      raise ValueError(
        f'{_FLAG}: {name} is not installed; install it with pip install '
        f'{name}, or leave it out.'
      )
  return {
    name: settings.load_function(
      f'{_FLAG}={name}', base.BUILT_IN.get(name, name)
    )
    for name in names
  }


class MetricsLog:
  """Gives reports to a run's writers; one that fails loses only its own rows.

  It is given the next ones all the same, and may work again.
  """

  def __init__(
    self,
    makes: Mapping[str, Make],
    workdir: pathlib.Path,
    config: ml_collections.ConfigDict,
    say: Callable[[str], None],
  ):
    """Opens the writers; `say` takes a sentence on one that fails later.

    Raises:
      NotOpened: if one cannot begin; the others are closed.
    """
    self._say = say
    self._writers: dict[str, base.Writer] = {}
    self._failing: set[str] = set()
    for name, make in makes.items():
      try:
        self._writers[name] = _checked(make(workdir, config))
      except Exception as e:
        self.close()
        raise NotOpened(f'{_FLAG}={name} cannot begin: {_reason(e)}.') from e

  def roll_back(self, updates: int, frames: int) -> None:
    """Drops rows later than a checkpoint; see `Writer.roll_back`."""
    self._tell_all(lambda writer: writer.roll_back(updates, frames))

  def write(self, row: base.Row) -> None:
    """Writes one report."""
    self._tell_all(lambda writer: writer.write(row))

  def close(self) -> None:
    """Closes the writers."""
    self._tell_all(lambda writer: writer.close())

  def _tell_all(self, tell: Callable[[base.Writer], None]) -> None:
    """Reports a writer that fails, once until it works again."""
    for name, writer in self._writers.items():
      try:
        tell(writer)
      except Exception as e:
        if name not in self._failing:
          self._say(
            f'The writer {name} fails ({_reason(e)}); the run goes on without '
            'it until it works again.'
          )
        self._failing.add(name)
      else:
        self._failing.discard(name)


def _checked(writer: base.Writer) -> base.Writer:
  if not isinstance(writer, base.Writer):
    raise TypeError(
      f'it must return a {base.__name__}.Writer, not {type(writer).__name__}'
    )
  return writer


def _reason(error: Exception) -> str:
  """Returns what the system says, or else the error and its place."""
  is_ours = isinstance(error, workdir_lib.NotWritten)
  cause = error.__cause__ if is_ours else error
  if isinstance(cause, OSError) and cause.strerror:
    return cause.strerror
  return settings.error_text(error)
