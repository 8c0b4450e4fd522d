"""Gives JAX eight simulated CPU devices, for every test of this process.

A test of one device takes `jax.devices()[:1]`; one that makes a whole run sets
`topology.max_devices`. What a test starts as a process of its own does not
inherit this, but for where compiled programs are kept.
"""

import os

import jax
import pytest

jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 8)


@pytest.fixture(scope='session', autouse=True)
def _compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
  """Compiles once what many tests' runs share; half of their time.

  Away from the user's own: for their processes, too.
  """
  path = tmp_path_factory.mktemp('compilation-cache')
  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(path)
  os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
  jax.config.update('jax_compilation_cache_dir', str(path))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
