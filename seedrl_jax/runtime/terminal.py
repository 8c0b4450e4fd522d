"""Signals and outputs of a program that may outlive its terminal."""

import os
import signal
import sys
import types
from collections.abc import Callable
from typing import TextIO

_OUTPUTS = (('stdout', 1), ('stderr', 2))


def on_stop(
  handler: Callable[[int, types.FrameType | None], None],
) -> None:
  """Calls `handler` on Ctrl-C, SIGTERM and, unless under `nohup`, SIGHUP."""
  numbers = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  for number in numbers:
    signal.signal(number, handler)


def ensure_outputs() -> None:
  """Opens missing standard outputs to /dev/null.

  Otherwise the first files opened would get their numbers and what libraries
  print.
  """
  for name, number in _OUTPUTS:
    if getattr(sys, name) is None:
      os.dup2(os.open(os.devnull, os.O_WRONLY), number)
      setattr(sys, name, os.fdopen(number, 'w'))


def say(text: str) -> None:
  """Prints a line in one piece, or nothing if the output is closed."""
  _write(sys.stdout, text + '\n')


def drop_unread() -> None:
  """Redirects closed outputs to /dev/null; call this last.

  Otherwise the interpreter's last flush would fail and change the exit code.
  """
  for name, _ in _OUTPUTS:
    _write(getattr(sys, name), '')


def _write(output: TextIO, text: str) -> None:
  # It may have been closed at either end.
  if output.closed:
    return
  try:
    output.write(text)
    output.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
