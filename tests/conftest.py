"""Gives JAX eight simulated CPU devices in the tests' process.

A run in a test sets `topology.max_devices`. Child processes inherit only the
folder of compiled programs.
"""

import contextlib
import functools
import gc
import os
import signal
from collections.abc import Iterator

import jax
import pytest

from seedrl_jax.replay.reverb.server import environment, server
from seedrl_jax.runtime import process
from tests import runs, shared_reverb
from tests.actors import processes
from tests.replay.reverb import shared_servers

process.defer_packages()
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)


@pytest.fixture(autouse=True, scope='module')
def forget_programs_fixture():
  """Drops compiled programs after each file.

  Each has memory maps, and Linux allows a process 65,530 of them. Beyond, XLA
  crashes or hangs while it compiles.
  """
  yield
  jax.clear_caches()


@pytest.fixture(scope='session', autouse=True)
def _compilation_cache(pytestconfig: pytest.Config) -> None:
  """Keeps compiled programs for all tests and runs of tests."""
  path = str(pytestconfig.cache.mkdir('compiled-programs'))
  os.environ['JAX_COMPILATION_CACHE_DIR'] = path
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
  jax.config.update('jax_compilation_cache_dir', path)
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


@pytest.fixture(scope='session', autouse=True)
def _signals() -> None:
  """Undoes `nohup` and `&`, whose ignored signals programs inherit."""
  signal.signal(signal.SIGHUP, signal.SIG_DFL)
  signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _programs() -> Iterator[None]:
  """Ends the programs that a failed test leaves running."""
  yield
  while runs.Program.started:
    runs.Program.started.pop().process.kill()
  while processes.Process.started:
    processes.Process.started.pop().kill()


def pytest_collection_finish() -> None:
  """Excludes modules and tests from garbage collection."""
  gc.freeze()


_SKIPPED = 'needs a Reverb server: '


@pytest.fixture(scope='session', name='server_python')
def server_python_fixture() -> str:
  """Returns a Python that has Reverb."""
  return reverb_or_skip()


@pytest.fixture(scope='session', name='reverb_factory')
def reverb_factory_fixture(
  server_python: str,
) -> Iterator[shared_servers.ServerFactory]:
  """Returns what starts Reverb servers in one process."""
  factory = shared_servers.ServerFactory(server_python)
  with contextlib.closing(factory):
    yield factory


@pytest.fixture(name='shared_reverb')
def shared_reverb_fixture(
  reverb_factory: shared_servers.ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Has runs in this process start their Reverb servers in one other."""
  make = functools.partial(shared_reverb.ReverbServer, reverb_factory)
  monkeypatch.setattr(server, 'ReverbServer', make)


def reverb_or_skip() -> str:
  """Returns a Python that has Reverb; skips the test if none is available.

  A Reverb that is available and fails is a failure.
  """
  try:
    return environment.ensure()
  except environment.NoReverb as e:
    # Programs that tests start need not try uv again.
    os.environ['UV_PYTHON_DOWNLOADS'] = 'never'
    pytest.skip(f'{_SKIPPED}{e}')


def pytest_terminal_summary(
  terminalreporter: pytest.TerminalReporter,
) -> None:
  """Counts all tests that were skipped for lack of Reverb in one line."""
  for report in terminalreporter.stats.get('skipped', []):
    _, _, reason = report.longrepr
    if _SKIPPED in reason:
      # pytest groups skips by place and reason.
      report.longrepr = (__file__, None, reason)


@pytest.fixture(name='backend', params=['embedded', 'reverb'])
def backend_fixture(request: pytest.FixtureRequest) -> str:
  """Returns each `replay.backend`."""
  if request.param == 'reverb':
    request.getfixturevalue('shared_reverb')
  return request.param
