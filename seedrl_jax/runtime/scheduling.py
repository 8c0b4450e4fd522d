"""How the threads of a process take turns on its cores.

`process.configure` calls it for a run, and what is measured as a run would do
it calls it by itself. Imports nothing of JAX.
"""

import os
import sys

# Seconds after which a thread that computes in Python lets another in. The
# default of 5 ms is fifty inference calls long.
_SWITCH_INTERVAL = 2e-4


def configure() -> None:
  """Has threads change places seldom, and Python's at once."""
  sys.setswitchinterval(_SWITCH_INTERVAL)
  # Threads that wake do not interrupt the one that runs: the environments'
  # threads would, thousands of times a second, and they can wait.
  os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
