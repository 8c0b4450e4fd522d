"""How glibc hands out memory; decides a third of the speed on the CPU.

XLA's CPU backend allocates its temporary buffers anew in every call. By
default glibc gives large ones back to the system each time, and the page
faults of taking them again cost more than a small convolutional network's
arithmetic. The launch scripts call this first. Imports nothing of JAX.
"""

import ctypes
import os
import platform
import sys

# glibc's mallopt parameters.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
_HEAP_BYTES = 64 << 20
_VARIABLE = 'GLIBC_TUNABLES'
_TUNABLE = 'glibc.malloc.hugetlb'


def keep_freed() -> None:
  """Has glibc keep the memory of large buffers for the next ones."""
  if platform.libc_ver()[0] != 'glibc':
    return
  mallopt = ctypes.CDLL(None).mallopt
  mallopt(_M_MMAP_MAX, 0)
  mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
  # A thread's own heaps are given back when they are empty, whatever the
  # threshold, unless the padding is as large as they are. One heap for all
  # threads would not be, and they would wait for each other.
  mallopt(_M_TOP_PAD, _HEAP_BYTES)


def restart_with_huge_pages() -> None:
  """Starts this program anew with memory in huge pages, unless it was so.

  One fault then brings 2 MiB in place of 4 KiB. glibc reads the setting only
  when a process starts, so the process replaces itself, keeping its number,
  before it has done anything; a setting of the user's own is left as it is.
  """
  tunables = os.environ.get(_VARIABLE, '')
  if platform.libc_ver()[0] != 'glibc' or _TUNABLE in tunables:
    return
  setting = f'{_TUNABLE}=1'
  os.environ[_VARIABLE] = f'{tunables}:{setting}' if tunables else setting
  sys.stdout.flush()
  os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
