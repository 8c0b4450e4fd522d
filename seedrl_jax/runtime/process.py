"""Sets a process up for fast and quiet work on the CPU. Imports no JAX."""

import ctypes
import logging
import os
import platform
import sys

from seedrl_jax.runtime import startup

# XLA's newest library for dot products and convolutions has one thread; this
# leaves it only single dots.
_XLA_CPU_FLAG = '--xla_cpu_experimental_ynn_fusion_type=individual_dot'
# JAX versions with the flag: an unknown flag ends the process.
_FLAG_VERSIONS = ((0, 10), (0, 11), (0, 12))
# Seconds. The default of 5 ms is as long as fifty inference calls.
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

  # JAX reports every kind of device that it does not find.
  logging.getLogger('jax._src.xla_bridge').setLevel(logging.WARNING)
  # The threads of a run keep the cores busy, and a hand-over to JAX's own costs
  # more than a small network's step.
  jax.config.update('jax_cpu_enable_async_dispatch', False)
  cache.keep_compiled()
  schedule_threads()
  keep_freed_memory()
  if jax.__version_info__[:2] in _FLAG_VERSIONS:
    flags = os.environ.get('XLA_FLAGS', '')
    if _XLA_CPU_FLAG.partition('=')[0] not in flags:
      os.environ['XLA_FLAGS'] = f'{flags} {_XLA_CPU_FLAG}'.strip()


def schedule_threads() -> None:
  """Makes the system switch threads seldom, and Python soon."""
  sys.setswitchinterval(_SWITCH_INTERVAL)
  # Otherwise environments' threads that wake interrupt the running one,
  # thousands of times a second.
  os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_freed_memory() -> None:
  """Makes glibc keep the memory of freed large buffers.

  XLA's CPU backend allocates its buffers anew in every call. The page faults of
  memory that glibc has released cost a third of the speed.
  """
  if platform.libc_ver()[0] != 'glibc':
    return
  mallopt = ctypes.CDLL(None).mallopt
  mallopt(_M_MMAP_MAX, 0)
  mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
  # Otherwise glibc releases a thread's empty heap, whatever the threshold. One
  # heap for all threads would be contended.
  mallopt(_M_TOP_PAD, _HEAP_BYTES)


def restart_with_huge_pages() -> None:
  """Restarts this program with huge pages (2 MiB), unless it has them.

  glibc reads the setting when a process starts, so call this first. The process
  keeps its id, and the user's own setting stays.
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

  `offset` is the processor of thread 0; -1 pins none.

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
