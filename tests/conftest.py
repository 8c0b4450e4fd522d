"""Gives JAX eight simulated CPU devices, for every test of this process.

A test of one device takes `jax.devices()[:1]`; one that makes a whole run sets
`topology.max_devices`. What a test starts as a process of its own does not
inherit this, but for where compiled programs are kept.
"""

import gc
import os

import jax
import pytest

from seedrl_jax.replay.reverb.server import environment
from seedrl_jax.runtime import startup

# As the programs do; each process of pytest-xdist starts, too.
startup.defer_packages()
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)


@pytest.fixture(scope='session', autouse=True)
def _compilation_cache(
  tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> None:
  """Compiles once what many tests' runs share; half of their time.

  Away from the user's own: for their processes, too.
  """
  base = tmp_path_factory.getbasetemp()
  # pytest-xdist's processes have a folder each, in a common one.
  path = (base if worker_id == 'master' else base.parent) / 'compilation-cache'
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(path)
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
  jax.config.update('jax_compilation_cache_dir', str(path))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)


def pytest_collection_finish() -> None:
  """Has the garbage collector skip modules and tests, which all stay."""
  gc.freeze()


_SKIPPED = 'needs a Reverb server: '


@pytest.fixture(scope='session', name='server_python')
def server_python_fixture() -> str:
  """Returns a Python that has Reverb; all tests of a real server ask for it."""
  return reverb_or_skip()


def reverb_or_skip() -> str:
  """Returns a Python that has Reverb, or skips a test where none can be had.

  A Reverb that could be had and fails is a failure.
  """
  try:
    return environment.ensure()
  except environment.NoReverb as e:
    # Programs that tests start need not ask uv again.
    os.environ['UV_PYTHON_DOWNLOADS'] = 'never'
    pytest.skip(f'{_SKIPPED}{e}')


def pytest_terminal_summary(
  terminalreporter: pytest.TerminalReporter,
) -> None:
  """Has all tests that were skipped for want of Reverb counted in one line."""
  for report in terminalreporter.stats.get('skipped', []):
    _, _, reason = report.longrepr
    if _SKIPPED in reason:
      # What has the same place and reason makes one line.
      report.longrepr = (__file__, None, reason)


@pytest.fixture(name='backend', params=['embedded', 'reverb'])
def backend_fixture(request: pytest.FixtureRequest) -> str:
  """Returns one `replay.backend` after the other."""
  if request.param == 'reverb':
    request.getfixturevalue('server_python')
  return request.param
