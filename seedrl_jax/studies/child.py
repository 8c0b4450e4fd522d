"""Becomes a Python program that ends with its parent, on some processors.

`python child.py PARENT_PID PROCESSORS PROGRAM…`. Without imports of this
package, so that it takes no time; not in a forked process, which may not run
Python safely.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, processors: str, *program: str) -> None:
  """Never returns."""
  # The kernel kills this process once the parent's main thread has ended; the
  # program's own processes end with it.
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:
    # It has ended before.
    sys.exit(1)
  os.sched_setaffinity(0, map(int, processors.split(',')))
  os.execv(sys.executable, [sys.executable, *program])


if __name__ == '__main__':
  main(int(sys.argv[1]), *sys.argv[2:])
