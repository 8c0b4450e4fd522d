"""Sets a process up: speed on the CPU, caches, imports, signals and outputs.

JAX is imported only by `configure` and `keep_compiled`.
"""

import contextlib
import ctypes
import gc
import hashlib
import importlib.abc
import importlib.machinery
import logging
import os
import pathlib
import platform
import re
import signal
import sys
import threading
import types
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

# XLA's newest library for dot products and convolutions has one thread; this
# leaves it only single dots.
_XLA_CPU_FLAG = '--xla_cpu_experimental_ynn_fusion_type=individual_dot'
# JAX versions with the flag: an unknown flag ends the process.
_FLAG_VERSIONS = ((0, 10), (0, 11), (0, 12))
# Without it, GPUs add in whatever order their threads come.
_GPU_FLAG = '--xla_gpu_deterministic_ops=true'
# Seconds. The default of 5 ms is as long as fifty inference calls.
_SWITCH_INTERVAL = 2e-4
# glibc's mallopt parameters.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_HEAP_BYTES = 64 << 20
_VARIABLE, _TUNABLE = 'GLIBC_TUNABLES', 'glibc.malloc.hugetlb'
# Bytes of all kept programs. A run on CartPole has 1.5 MB.
_CACHE_LIMIT = 1 << 30
_CPUINFO = pathlib.Path('/proc/cpuinfo')
# Processors of the program, of which a part of it may confine itself to some.
PROCESSORS = tuple(sorted(os.sched_getaffinity(0)))
# The lines that tell kinds of processors apart.
_PROCESSOR = re.compile(
  r'(vendor_id|cpu family|model|flags|Features|CPU (implementer|part))\s*:.*'
)
# A terminal's codes: to clear the row and what is below, and for styles.
CLEAR, RED, PLAIN = '\r\x1b[J', '\x1b[31m', '\x1b[0m'
# Variables that ask for plain text.
_PLAIN_VARIABLES = ('NO_COLOR', 'CI')

# Whether this process is a fork, which has no threads, of one with JAX's.
_lacks_threads = False


def _note_fork() -> None:
  global _lacks_threads
  _lacks_threads |= _has_backends()


os.register_at_fork(after_in_child=_note_fork)


def configure() -> None:
  """Configures the process and JAX, before JAX sees a device.

  Raises RuntimeError in a fork of a process that has used JAX.
  """
  if _lacks_threads:
    raise RuntimeError(
      'This process was forked from one that has used JAX, whose threads it '
      "lacks; start it anew, as by multiprocessing.get_context('spawn'), or "
      'fork before the first use of JAX.'
    )
  defer_packages()
  import jax

  # JAX reports every kind of device that it does not find.
  logging.getLogger('jax._src.xla_bridge').setLevel(logging.WARNING)
  # The threads of a run keep the cores busy, and a hand-over to JAX's own costs
  # more than a small network's step.
  jax.config.update('jax_cpu_enable_async_dispatch', False)
  # Initial states are made on the host.
  platforms = os.environ.get('JAX_PLATFORMS')
  if platforms and 'cpu' not in platforms.split(','):
    jax.config.update('jax_platforms', f'{platforms},cpu')
  keep_compiled()
  # Make the system switch threads seldom, and Python soon: environments'
  # threads that wake would interrupt the running one thousands of times a
  # second.
  os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
  sys.setswitchinterval(_SWITCH_INTERVAL)
  _keep_freed_memory()
  if jax.__version_info__[:2] in _FLAG_VERSIONS:
    flags = os.environ.get('XLA_FLAGS', '')
    if _XLA_CPU_FLAG.partition('=')[0] not in flags:
      os.environ['XLA_FLAGS'] = f'{flags} {_XLA_CPU_FLAG}'.strip()


def make_gpu_deterministic() -> None:
  """Sets a GPU's flag for equal results; ValueError if JAX runs without it."""
  flags = os.environ.get('XLA_FLAGS', '').split()
  if _GPU_FLAG in flags:
    return
  if not _has_backends():
    # Of several, the last one counts.
    os.environ['XLA_FLAGS'] = ' '.join([*flags, _GPU_FLAG])
    return
  import jax

  if jax.default_backend() == 'gpu':
    raise ValueError(
      '--config.deterministic=True: JAX has started on a GPU without '
      f'{_GPU_FLAG}; start again with XLA_FLAGS={_GPU_FLAG}.'
    )


def _has_backends() -> bool:
  """Whether JAX has opened its devices, for which it has threads."""
  bridge = sys.modules.get('jax._src.xla_bridge')
  # JAX's own function takes a lock, which a fork may have copied locked.
  return bool(getattr(bridge, '_backends', None))


def _keep_freed_memory() -> None:
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

  `offset` is that of thread 0; -1 pins none. Raises ValueError if forbidden.
  """
  if offset < 0:
    return None
  core = offset + index
  if core not in os.sched_getaffinity(0):
    raise ValueError(
      f'--config.topology.inference_affinity_offset={offset}: inference thread '
      f'{index} needs processor {core}, which this process may not use; lower '
      'it, or give -1.'
    )
  return core


def cache_folder() -> pathlib.Path:
  """Returns the user's cache folder, which need not exist."""
  if path := os.environ.get('SEEDRL_CACHE'):
    return pathlib.Path(path)
  base = os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
  return pathlib.Path(base, 'seedrl-jax')


def keep_compiled() -> None:
  """Makes JAX keep compiled programs, unless the user set its variables."""
  import jax

  config: Any = jax.config
  if config.jax_compilation_cache_dir or (
    not config.jax_enable_compilation_cache
  ):
    return
  # A folder that cannot be read or written costs a run only time.
  warnings.filterwarnings(
    'ignore', r'Error (reading|writing) persistent compilation cache'
  )
  with contextlib.suppress(OSError, RuntimeError):
    programs = cache_folder() / f'jax-{_processor()}'
    # Whoever may write there can make our processes run what they like.
    programs.mkdir(mode=0o700, parents=True, exist_ok=True)
    config.update('jax_compilation_cache_dir', str(programs))
    config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    # Last, as another process may delete the same files.
    prune(programs.parent)


def prune(place: pathlib.Path, limit: int = _CACHE_LIMIT) -> None:
  """Deletes least recently used programs below `place` beyond `limit` bytes."""
  caches = [(p.stat(), p) for p in place.glob('jax-*/*-cache')]
  for stat, path in sorted(caches, key=lambda f: f[0].st_atime, reverse=True):
    limit -= stat.st_size
    if limit < 0:
      path.unlink(missing_ok=True)


def _processor() -> str:
  # Programs use all instructions of a CPU, and machines may share a home.
  text = _CPUINFO.read_text().partition('\n\n')[0]
  lines = [line for line in text.splitlines() if _PROCESSOR.fullmatch(line)]
  return hashlib.sha256('\n'.join(lines).encode()).hexdigest()[:12]


def defer_packages() -> None:
  """Defers slow imports, half the time of a start, to their first use.

  EnvPool imports every family of environments, one of them matplotlib. RLax
  imports Distrax, and that TensorFlow Probability, for deprecated functions.
  """
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: types.ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    if fullname != 'distrax' and not fullname.startswith('envpool.'):
      return None
    spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
    # A module that is no package is imported only if it is needed.
    if spec and spec.loader and spec.submodule_search_locations:
      spec.loader = _DeferringLoader(spec.loader)
    return spec


class _DeferringLoader(importlib.abc.Loader):
  """Runs a package's code at the first access to an attribute."""

  def __init__(self, loader: importlib.abc.Loader):
    self._loader = loader
    # Other threads wait for the code.
    self._lock = threading.RLock()
    self._has_begun = False

  def exec_module(self, module: types.ModuleType) -> None:
    contents = vars(module)
    if module.__name__ == 'distrax':
      # RLax annotates two functions with this name.
      contents['DistributionLike'] = Any

    def get(name: str) -> Any:
      with self._lock:
        if contents.get('__getattr__') is get:
          if self._has_begun:
            raise AttributeError(f'{module.__name__} has no {name} yet')
          self._has_begun = True
          try:
            self._loader.exec_module(module)
          finally:
            self._has_begun = False
          # The package may define its own, as EnvPool's Procgen does.
          if contents['__getattr__'] is get:
            del contents['__getattr__']
      return getattr(module, name)

    contents['__getattr__'] = get


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
  """Pauses the garbage collector, and excludes what was made meanwhile."""
  gc.disable()
  try:
    yield
  finally:
    gc.freeze()
    gc.enable()


def on_stop(handler: Callable[[int, types.FrameType | None], None]) -> None:
  """Calls `handler` on Ctrl-C, SIGTERM and, unless under `nohup`, SIGHUP."""
  numbers = [signal.SIGINT, signal.SIGTERM]
  if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
    numbers.append(signal.SIGHUP)
  for number in numbers:
    signal.signal(number, handler)


def say(text: str) -> None:
  """Prints a line in one piece, or nothing if the output is closed."""
  write(sys.stdout, text + '\n')


def drop_unread() -> None:
  """Redirects closed outputs to /dev/null; call this last.

  Otherwise the interpreter's last flush would fail and change the exit code.
  """
  for output in sys.stdout, sys.stderr:
    write(output, '')


def exit_now(sentence: str) -> NoReturn:
  """Ends the process with exit code 1, whatever its threads wait for."""
  write_error(sentence)
  write(sys.stdout, '')
  os._exit(1)


def printable(text: str) -> str:
  """Returns a string with control characters escaped, except lines and tabs.

  Texts of others, such as an environment's error, could otherwise change what
  a terminal shows.
  """
  return ''.join(
    c.encode('unicode_escape').decode()
    if unicodedata.category(c)[0] == 'C' and c not in '\n\t'
    else c
    for c in text
  )


def takes_codes(output: TextIO) -> bool:
  """Returns whether an output is a terminal that shows colours."""
  if output.closed or not output.isatty() or os.environ.get('TERM') == 'dumb':
    return False
  return not any(os.environ.get(name) for name in _PLAIN_VARIABLES)


def write_error(text: str) -> None:
  """Writes an error, whose last line is the most important, to stderr."""
  if not takes_codes(sys.stderr):
    write(sys.stderr, text + '\n')
    return
  # A progress line may be there.
  before, newline, last = printable(text).rpartition('\n')
  write(sys.stderr, '', f'{CLEAR}{before}{newline}{RED}{last}{PLAIN}\n')


def write(output: TextIO, text: str, codes: str = '') -> None:
  """Writes and flushes, or nothing if the output is closed at either end.

  Escapes the text's control characters. `codes` are for the terminal, and come
  first.
  """
  if output.closed:
    return
  try:
    output.write(codes + printable(text))
    output.flush()
  except OSError:
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
