"""Sets a process up for fast and quiet work on the CPU.

An accelerator's own work is not affected. Importing this imports no JAX.
"""

import ctypes
import logging
import os
import platform
import sys

from seedrl_jax.runtime import startup

# XLA's newest library for dot products and convolutions works on one thread;
# this leaves it the single dots and takes the threaded one for the rest.
_XLA_CPU_FLAG = '--xla_cpu_experimental_ynn_fusion_type=individual_dot'
# Versions in which the flag was tried: an unknown one ends the process.
_FLAG_VERSIONS = ((0, 10), (0, 11), (0, 12))
# Seconds after which a thread that computes in Python lets another in. The
# default of 5 ms is fifty inference calls long.
_SWITCH_INTERVAL = 2e-4
# glibc's mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_HEAP_BYTES = 64 << 20
_VARIABLE = 'GLIBC_TUNABLES'
_TUNABLE = 'glibc.malloc.hugetlb'


def configure() -> None:
  """Configures the process and JAX, before JAX sees a device."""
  startup.defer_packages()
  import jax

  from seedrl_jax.runtime import cache

  # JAX reports, as a message to the user, every kind of device that it looked
  # for and did not find.
  logging.getLogger('jax._src.xla_bridge').setLevel(logging.WARNING)
  # On the CPU, work is done by the thread that asks for it: the threads of a
  # run keep the cores busy as it is, and a hand-over to JAX's own costs more
  # than a small network's step.
  jax.config.update('jax_cpu_enable_async_dispatch', False)
  cache.keep_compiled()
  schedule_threads()
  keep_freed_memory()
  if jax.__version_info__[:2] in _FLAG_VERSIONS:
    flags = os.environ.get('XLA_FLAGS', '')
    if _XLA_CPU_FLAG.partition('=')[0] not in flags:
      os.environ['XLA_FLAGS'] = f'{flags} {_XLA_CPU_FLAG}'.strip()


def schedule_threads() -> None:
  """Makes the system switch threads seldom, and Python at once."""
  sys.setswitchinterval(_SWITCH_INTERVAL)
  # Threads that wake do not interrupt the one that runs: the environments'
  # threads would, thousands of times a second, and they can wait.
  os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_freed_memory() -> None:
  """Makes glibc keep the memory of large buffers for the next ones.

  XLA's CPU backend allocates its temporary buffers anew in every call. By
  default glibc gives large ones back to the system each time, and the page
  faults of taking them again cost more than a small convolutional network's
  arithmetic: a third of the speed on the CPU.
  """
  if platform.libc_ver()[0] != 'glibc':
    return
  mallopt = ctypes.CDLL(None).mallopt
  mallopt(_M_MMAP_MAX, 0)
  mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
  # A thread's own heap is given back when it is empty, whatever the threshold,
  # unless the padding is as large. With one heap for all, threads would wait
  # for each other.
  mallopt(_M_TOP_PAD, _HEAP_BYTES)


def restart_with_huge_pages() -> None:
  """Restarts this program with memory in huge pages, unless it has them.

  A page fault then brings 2 MiB instead of 4 KiB. glibc reads the setting only
  when a process starts, so the process replaces itself and keeps its number.
  Call this first. A setting of the user's own stays.
  """
  tunables = os.environ.get(_VARIABLE, '')
  if platform.libc_ver()[0] != 'glibc' or _TUNABLE in tunables:
    return
  setting = f'{_TUNABLE}=1'
  os.environ[_VARIABLE] = f'{tunables}:{setting}' if tunables else setting
  sys.stdout.flush()
  os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def pinned_core(offset: int, index: int) -> int | None:
  """Returns the processor that inference thread `index` is pinned to.

  Args:
    offset: `config.topology.inference_affinity_offset`, the processor of
      thread 0; -1 pins none.
    index: of the thread.

  Raises:
    ValueError: if this process may not run on that processor.
  """
  if offset < 0:
    return None
  core = offset + index
  allowed = sorted(os.sched_getaffinity(0))
  if core not in allowed:
    raise ValueError(
      f'--config.topology.inference_affinity_offset={offset}: inference thread '
      f'{index} would need processor {core}, but this process has {allowed}; '
      'lower it, or give -1.'
    )
  return core
