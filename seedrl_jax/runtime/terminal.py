"""Has a program outlive its terminal: hang-ups, and output that nobody reads.

The launch scripts call this. Imports nothing of JAX, as actors do without.
"""

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
  """Calls `handler` on Ctrl-C, SIGTERM and SIGHUP.

  A SIGHUP that the process was started to ignore, as by `nohup`, stays so.
  """
  numbers = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  for number in numbers:
    signal.signal(number, handler)


def ensure_outputs() -> None:
  """Opens outputs that the process was started without, to nowhere.

  The first files that it opens would take their numbers, and get what
  libraries print.
  """
  for name, number in _OUTPUTS:
    if getattr(sys, name) is None:
      os.dup2(os.open(os.devnull, os.O_WRONLY), number)
      setattr(sys, name, os.fdopen(number, 'w'))


def say(text: str) -> None:
  """Prints a line, in one piece; nothing where nobody reads it."""
  try:
    sys.stdout.write(text + '\n')
    sys.stdout.flush()
  except OSError:
    _drop(sys.stdout)


def drop_unread() -> None:
  """Sends outputs that are closed to nowhere, with what waits to be written.

  To be called last of all, too: the interpreter's own try at its end would
  complain, and change the exit code.
  """
  for name, _ in _OUTPUTS:
    output = getattr(sys, name)
    try:
      output.flush()
    except OSError:
      _drop(output)


def _drop(output: TextIO) -> None:
  os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
