"""Sets a process up for fast and quiet work; the launch scripts call it first.

All of it is about the CPU backend and the threads around it; an accelerator's
own work is not touched.
"""

import logging
import os

import jax

from seedrl_jax.runtime import compilation_cache, memory, scheduling, startup

# XLA's newest library for dot products and convolutions works on one thread;
# this leaves it the single dots and takes the threaded one for the rest.
_XLA_CPU_FLAG = '--xla_cpu_experimental_ynn_fusion_type=individual_dot'
# Versions in which the flag was tried: an unknown one ends the process.
_FLAG_VERSIONS = ((0, 10), (0, 11), (0, 12))


def configure() -> None:
  """Configures the process; to be called before JAX sees a device."""
  # JAX reports, as a message to the user, every kind of device that it looked
  # for and did not find.
  logging.getLogger('jax._src.xla_bridge').setLevel(logging.WARNING)
  # On the CPU, work is done by the thread that asks for it: the threads of a
  # run keep the cores busy as it is, and a hand-over to JAX's own costs more
  # than a small network's step.
  jax.config.update('jax_cpu_enable_async_dispatch', False)
  startup.defer_packages()
  compilation_cache.configure()
  scheduling.configure()
  memory.keep_freed()
  if jax.__version_info__[:2] in _FLAG_VERSIONS:
    flags = os.environ.get('XLA_FLAGS', '')
    if _XLA_CPU_FLAG.partition('=')[0] not in flags:
      os.environ['XLA_FLAGS'] = f'{flags} {_XLA_CPU_FLAG}'.strip()


def pinned_core(offset: int, index: int) -> int | None:
  """Returns the processor that inference thread `index` is pinned to.

  Args:
    offset: `config.topology.inference_affinity_offset`: that of thread 0; -1
      for none.
    index: of the thread.

  Raises:
    ValueError: where this process may not run on that processor.
  """
  if offset < 0:
    return None
  core = offset + index
  allowed = sorted(os.sched_getaffinity(0))
  if core not in allowed:
    raise ValueError(
      f'--config.topology.inference_affinity_offset={offset}: inference thread '
      f'{index} would need processor {core}, and this process has {allowed}; '
      'lower it, or give -1.'
    )
  return core
