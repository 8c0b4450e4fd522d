"""Becomes a program that ends with its parent, on some processors.

`python bound_child.py PARENT_PID PROCESSORS COMMAND…`; PROCESSORS are numbers
with commas, or '' for any. Without imports of this package, so that it takes no
time; not in a forked process, which may not run Python safely.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: str, processors: str, *command: str) -> None:
  """Never returns."""
  # Parents may block signals, which children inherit.
  signal.pthread_sigmask(signal.SIG_SETMASK, ())
  # The kernel kills this process once the parent's thread that started it has
  # ended; the program's own processes end with it.
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != int(parent):
    # It has ended before.
    sys.exit(1)
  if processors:
    os.sched_setaffinity(0, map(int, processors.split(',')))
  os.execvp(command[0], command)


if __name__ == '__main__':
  main(*sys.argv[1:])
