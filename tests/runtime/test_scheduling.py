"""Tests of `seedrl_jax.runtime.scheduling`."""

import subprocess
import sys

_PROGRAM = """
import os, sys
from seedrl_jax.runtime import scheduling
scheduling.configure()
scheduling.configure()
print(sys.getswitchinterval() < 0.005)
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
print('jax' in sys.modules)
"""


def test_configures_threads_without_jax_and_twice_as_once():
  # In a process of its own, as nothing sets it back.
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.split() == ['True', 'True', 'False']
