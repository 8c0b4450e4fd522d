"""Trains an agent: `seedrl train --config=… --workdir=…`.

Any value of the configuration may be overridden as `--config.x.y=…`. Starting
again with the same `--workdir` resumes the run, with its own configuration and
without `--config`. For several hosts: seedrl learner.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
import traceback
import types as python_types
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from seedrl_jax import types
from seedrl_jax.launch import allow_flags, config_flag, program
from seedrl_jax.run import saved_config
from seedrl_jax.runtime import (
  process,
  progress,
  settings,
  workdir,
)

if TYPE_CHECKING:
  from seedrl_jax.hosts import coordinator as coordinator_lib

flags.adopt_module_key_flags(allow_flags)

CONFIG = config_flag.define(
  'The configuration of a new run, '
  f'{config_flag.DEFAULT} by default. A run that is resumed has its own.'
)
WORKDIR = flags.DEFINE_string(
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
_INIT_FROM = flags.DEFINE_string(
  'init_from',
  '',
  'Work directory of another run, whose parameters a new run begins with.',
)
_INIT_OPTIMIZER = flags.DEFINE_bool(
  'init_optimizer', False, "Takes the optimiser's state of --init_from, too."
)

# Time for a run to be there after a signal, as one that builds has nothing to
# save: an environment may hang while it is made.
_START_SECONDS = 30.0
# Whether the command line names neither a configuration nor a run to resume.
_is_default = False


class Stop:
  """Stops the run cleanly on SIGINT, SIGTERM or SIGHUP."""

  def __init__(self) -> None:
    self._run: Any = None
    self._is_requested = False

  def install(self) -> None:
    process.on_stop(self._handle)

  def attach(self, run: Any) -> None:
    """Sets the run to stop, at once if a signal came before."""
    self._run = run
    if self._is_requested:
      run.stop()

  def _handle(self, number: int, frame: python_types.FrameType | None) -> None:
    del frame
    if self._run is not None:
      self._run.stop()
    elif not self._is_requested:
      timer = threading.Timer(_START_SECONDS, self._end_a_start)
      timer.name = 'stop-start'
      timer.daemon = True
      timer.start()
    self._is_requested = True
    # A second Ctrl-C ends the process at once; other signals may repeat.
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.SIG_DFL)

  def _end_a_start(self) -> None:
    if self._run is not None:
      return
    process.exit_now(
      f'{program.NAME}: the start did not end within {_START_SECONDS:.0f} s of '
      'the signal; it may be reading a large replay, or an environment hangs.'
    )


def parse_flags(argv: list[str], set_later: Iterable[str] = ()) -> list[str]:
  """Parses the command line; exits with a message if it is wrong.

  The program sets the keys `set_later`, which may differ from the run's.
  """
  global _is_default
  arguments = argv[1:]
  try:
    name = config_flag.path_of(argv)
    folder = config_flag.path_of(argv, 'workdir')
    directory = workdir.Workdir(folder or '')
    run_config = saved_config.read(directory, bool(name)) if folder else None
    _is_default = run_config is None and name is None
    rest = config_flag.parse(argv, run_config=run_config)
    if run_config is not None:
      saved_config.check_resume(
        directory,
        run_config,
        CONFIG.value,
        {*config_flag.overrides(), *set_later},
        config_flag.load(name) if name else None,
        name or '',
        allow_flags.allowed(),
        shlex.join(['seedrl', program.NAME, *arguments]),
      )
  except ValueError as e:
    sys.exit(f'{program.NAME}: {e}')
  program.refuse_arguments(
    rest, '; name a configuration by --config=… and a folder by --workdir=….'
  )
  if not WORKDIR.value:
    sys.exit(f'{program.NAME}: --workdir is missing; name a folder for it.')
  return rest


def main(
  argv: Sequence[str],
  join: Callable[[], coordinator_lib.Coordinator] | None = None,
) -> None:
  """Trains until the end, SIGINT, SIGTERM or SIGHUP.

  `join` connects to the other hosts; None: there are none.
  """
  del argv
  stop = Stop()
  stop.install()
  progress.ready('command line')
  # Imports take a second, so parse flags first.
  with process.without_collection():
    process.configure()
    from seedrl_jax.hosts import coordinator as coordinator_lib
    from seedrl_jax.replay.reverb.server import environment
  if _REVERB_PYTHON.value:
    os.environ[environment.VARIABLE] = _REVERB_PYTHON.value
  coordinator = coordinator_lib.Coordinator()
  try:
    if join is not None:
      coordinator = join()
    _train(stop, coordinator)
  except (ValueError, MemoryError, types.Explained) as e:
    logging.debug('Shown by --verbosity=1:', exc_info=True)
    message = f'{program.NAME}: {e}'
    coordinator.fail(str(e), message)
    sys.exit(message)
  except BaseException as e:
    coordinator.fail(repr(e), traceback.format_exc())
    raise
  coordinator.leave()


def _train(stop: Stop, coordinator: coordinator_lib.Coordinator) -> None:
  if _is_default and not coordinator.index:
    progress.ProgressLine().say(
      f'New run of {config_flag.DEFAULT}, as {WORKDIR.value} holds none and '
      '--config is missing.'
    )
  with process.without_collection():
    from seedrl_jax.run import system

    progress.ready('imports')
    run = system.System(
      CONFIG.value,
      WORKDIR.value,
      _PROFILE.value,
      coordinator=coordinator,
      init_from=_INIT_FROM.value or None,
      init_optimizer=_INIT_OPTIMIZER.value,
    )
  stop.attach(run)
  try:
    run.train()
  except ValueError as e:
    # Not the user's mistake here: show the traceback.
    raise RuntimeError(
      f'The training has failed: {settings.error_text(e)}.'
    ) from e


def start(trains: Callable[[Sequence[str]], None] = main) -> None:
  """Runs a program that trains with the process's command line."""
  # Before gRPC is imported: else it logs bytes that strangers send to a port.
  os.environ.setdefault('GRPC_VERBOSITY', 'ERROR')
  program.run(trains, parse_flags, huge_pages=True)


if __name__ == '__main__':
  start()
