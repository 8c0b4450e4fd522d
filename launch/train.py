"""Trains an agent: `python launch/train.py --config=… --workdir=…`.

Every value of the configuration may be overridden as `--config.x.y=…`.
Starting again with the same `--workdir` resumes. People call it, and
`launch/local.sh`; `launch/learner.py` is the same with other defaults.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import pathlib
import re
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_collections
from absl import app, flags
from ml_collections import config_flags

from seedrl_jax.runtime import memory, terminal, workdir

if TYPE_CHECKING:
  from seedrl_jax.learner import hosts as hosts_lib

_DEFAULT_CONFIG = (
  pathlib.Path(__file__).resolve().parents[1] / 'configs/vtrace_cartpole.py'
)
_PROGRAM = pathlib.Path(sys.argv[0]).stem

_CONFIG = config_flags.DEFINE_config_file(
  'config',
  None,
  'A file with get_config(); any value may be overridden as --config.x.y=z. '
  'By default configs/vtrace_cartpole.py.',
  lock_config=True,
)
_WORKDIR = flags.DEFINE_string(
  'workdir',
  '',
  'Where the run keeps its checkpoints, curves and summary; a run that is '
  'there already is resumed.',
)
_REVERB_PYTHON = flags.DEFINE_string(
  'reverb_python',
  '',
  'Python that has dm-reverb, or from 3.9 to 3.11 to make its environment '
  'from; else SEEDRL_REVERB_PYTHON, else one that is found.',
)
_PROFILE = flags.DEFINE_integer(
  'profile',
  0,
  'Updates to capture a jax.profiler trace of, into <workdir>/profile.',
  lower_bound=0,
)


class _Stop:
  """What SIGINT, SIGTERM and SIGHUP do: a clean stop once there is a run."""

  def __init__(self) -> None:
    self._run: Any = None
    self._wanted = False

  def install(self) -> None:
    terminal.on_stop(self._handle)

  def attach(self, run: Any) -> None:
    """Stops `run` on a signal, or now where one came before."""
    self._run = run
    if self._wanted:
      run.stop()

  def _handle(self, number: int, frame: types.FrameType | None) -> None:
    del frame
    self._wanted = True
    if self._run is not None:
      self._run.stop()
    # A second Ctrl-C ends the process at once; others may be sent repeatedly.
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.SIG_DFL)


def _config_path(argv: Sequence[str]) -> str | None:
  """Returns the last --config of a command line, None without one."""
  path = None
  for i, argument in enumerate(argv):
    if match := re.fullmatch(r'--?config(?:=(.*))?', argument):
      path = match[1] or next(iter(argv[i + 1 :]), '')
  return path


def _load_config(argv: Sequence[str]) -> ml_collections.ConfigDict:
  """Returns the configuration that a command line names, no more.

  That is apart from the program's flags, and without the overrides.
  """
  values = flags.FlagValues()
  alone = [argv[0], f'--config={_config_path(argv)}']
  config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=alone)
  values(alone)
  return values['config'].value


def _keys(config: ml_collections.ConfigDict, prefix: str = '') -> Iterator[str]:
  for name, value in config.items():
    yield prefix + name
    if isinstance(value, ml_collections.ConfigDict):
      yield from _keys(value, f'{prefix}{name}.')


def _unknown_key(argv: Sequence[str]) -> str | None:
  """Returns a sentence about the first unknown key in a command line."""
  known = set(_keys(_load_config(argv)))
  for argument in argv:
    match = re.match(r'--?(no)?config\.([^=]+)', argument)
    if match is None or match[2] in known:
      continue
    section = match[2].rpartition('.')[0]
    if section in known and not any(k.startswith(section + '.') for k in known):
      return (
        f'--config.{match[2]}: give all of this section at once, as '
        f'--config.{section}="{{\'name\': value}}".'
      )
    near = difflib.get_close_matches(match[2], known, n=1, cutoff=0.0)
    return (
      f'--config.{match[2]}: the configuration has no such key; the nearest '
      f'is --config.{near[0]}.'
    )
  return None


def _check_config_file(argv: Sequence[str]) -> None:
  path = _config_path(argv) or ''
  # A config file may take an argument after a colon.
  if not pathlib.Path(path.partition(':')[0]).is_file():
    sys.exit(f'{_PROGRAM}: --config={path}: there is no such file.')


def _parse_flags(argv: list[str]) -> list[str]:
  """Parses the command line; exits with a sentence where it is wrong."""
  _check_config_file(argv)
  try:
    rest = flags.FLAGS(argv)
    if not _WORKDIR.value:
      sys.exit(f'{_PROGRAM}: --workdir is missing; name a folder for the run.')
    workdir.Workdir(_WORKDIR.value)
  except (flags.Error, workdir.WorkdirError) as e:
    sys.exit(f'{_PROGRAM}: {e}')
  except (AttributeError, KeyError, TypeError):
    # So ml_collections answers an unknown key; or the file itself is wrong.
    sentence = _unknown_key(argv)
    if sentence is None:
      raise
    sys.exit(f'{_PROGRAM}: {sentence}')
  if len(rest) > 1:
    sys.exit(f'{_PROGRAM}: unexpected arguments: {" ".join(rest[1:])}')
  return rest


def main(
  argv: Sequence[str],
  join: Callable[[], hosts_lib.Hosts | None] = lambda: None,
) -> None:
  """Trains until the end, SIGINT, SIGTERM or SIGHUP.

  Args:
    argv: nothing is left in it.
    join: meets the other hosts, where there are some; see `hosts.join`.
  """
  del argv
  stop = _Stop()
  stop.install()
  # Here, after the flags are known to be right: this takes seconds.
  from seedrl_jax.replay.reverb import interpreters
  from seedrl_jax.runtime import process

  process.configure()
  if _REVERB_PYTHON.value:
    os.environ[interpreters.VARIABLE] = _REVERB_PYTHON.value
  hosts = None
  try:
    hosts = join()
    _train(stop, hosts)
  except _said() as e:
    logging.debug('Shown by --verbosity=1:', exc_info=True)
    sentence = f'{_PROGRAM}: {e}'
    if hosts is not None:
      hosts.fail(str(e), sentence)
    sys.exit(sentence)
  except BaseException as e:
    if hosts is not None:
      hosts.fail(repr(e), traceback.format_exc())
    raise
  if hosts is not None:
    hosts.leave()


def _said() -> tuple[type[BaseException], ...]:
  """Returns errors whose message says all that the user needs to know."""
  from seedrl_jax import system
  from seedrl_jax.envs import registry
  from seedrl_jax.learner import agreement

  return (
    *(ValueError, MemoryError, workdir.NotWritten),
    *(registry.MissingLibraryError, agreement.HostLost, system.RunFailed),
  )


def _train(stop: _Stop, hosts: hosts_lib.Hosts | None) -> None:
  from seedrl_jax import system

  run = system.System(
    _CONFIG.value, _WORKDIR.value, _PROFILE.value, hosts=hosts
  )
  stop.attach(run)
  try:
    run.train()
  except ValueError as e:
    # Here it is no mistake of the user's: with its traceback.
    raise RuntimeError('The training has failed.') from e


def start(
  defaults: Callable[[ml_collections.ConfigDict], Mapping[str, Any]]
  | None = None,
  join: Callable[[], hosts_lib.Hosts | None] = lambda: None,
) -> None:
  """Runs the program with the process' command line.

  Args:
    defaults: gives, for what the config file says, values of keys that the
      command line does not set.
    join: see `main`.
  """
  # Before gRPC is imported: else it quotes what strangers send to a port, byte
  # for byte, in people's terminals.
  os.environ.setdefault('GRPC_VERBOSITY', 'ERROR')
  terminal.ensure_outputs()
  memory.restart_with_huge_pages()
  argv = sys.argv
  if _config_path(argv) is None:
    # Before the overrides, as they are of what it names.
    argv.insert(1, f'--config={_DEFAULT_CONFIG}')
  if defaults is not None:
    _check_config_file(argv)
    for key, value in defaults(_load_config(argv)).items():
      if not any(re.match(rf'--?config\.{key}(=|$)', a) for a in argv):
        argv.append(f'--config.{key}={value}')
  try:
    app.run(functools.partial(main, join=join), flags_parser=_parse_flags)
  finally:
    terminal.drop_unread()


if __name__ == '__main__':
  start()
