"""Tests for seedrl_jax/runtime/cache.py in processes."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from seedrl_jax.runtime import cache, checkpoints
from tests import runs

# Prints the cache's folder, its hits, and whether donated memory was used.
_PROGRAM = """
import resource, sys
import jax
import jax.numpy as jnp
from seedrl_jax.runtime import process

hits = []
process.configure()
jax.monitoring.register_event_listener(
  lambda name, **_: hits.append(name) if name.endswith('/cache_hits') else None
)
if 'full' in sys.argv:
  resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
x = jnp.arange(4096.0)
given = x.unsafe_buffer_pointer()
y = jax.jit(lambda x: 2.0 * x + 1.0, donate_argnums=0)(x)
assert float(y[3]) == 7.0
print(jax.config.jax_compilation_cache_dir, len(hits) > 0)
print(y.unsafe_buffer_pointer() == given, x.is_deleted())
"""


def _run(*arguments: str, **env: str) -> list[str]:
  """Returns the words of the program's output, which has no others."""
  own = {'JAX_PLATFORMS': 'cpu', 'JAX_COMPILATION_CACHE_DIR': ''}
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM, *arguments],
    env=os.environ | own | env,
    capture_output=True,
    text=True,
    check=True,
  )
  assert not done.stderr
  return done.stdout.split()


def test_the_environment_says_where_it_is(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setenv('SEEDRL_CACHE', '/one')
  assert cache.folder() == pathlib.Path('/one')
  monkeypatch.delenv('SEEDRL_CACHE')
  monkeypatch.setenv('XDG_CACHE_HOME', '/two')
  assert cache.folder() == pathlib.Path('/two/seedrl-jax')
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', '/three')
  assert cache.folder() == pathlib.Path('/three/.cache/seedrl-jax')


def test_programs_are_kept_and_write_where_they_should(tmp_path):
  cold, warm = [_run(SEEDRL_CACHE=str(tmp_path)) for _ in range(2)]
  (folder,) = tmp_path.glob('jax-*')
  assert folder.stat().st_mode & 0o777 == 0o700
  assert cold == [str(folder), 'False', 'True', 'True']
  assert warm == [str(folder), 'True', 'True', 'True']


@pytest.mark.parametrize(
  'env,folder',
  [
    ({'JAX_COMPILATION_CACHE_DIR': '{}/own'}, '{}/own'),
    ({'JAX_ENABLE_COMPILATION_CACHE': '0'}, ''),
  ],
)
def test_jax_s_own_variables_come_first(tmp_path, env, folder):
  env = {k: v.format(tmp_path) for k, v in env.items()}
  words = _run(SEEDRL_CACHE=str(tmp_path / 'ours'), **env)
  assert words[:-3] == folder.format(tmp_path).split()
  assert not (tmp_path / 'ours').exists()


@pytest.mark.parametrize('folder', ['/dev/null/cache', '{}'])
def test_a_folder_that_takes_nothing_costs_only_time(tmp_path, folder):
  words = _run('full', SEEDRL_CACHE=folder.format(tmp_path))
  assert words[-2:] == ['True', 'True']


def test_those_used_longest_ago_make_room(tmp_path: pathlib.Path):
  for i, name in enumerate(('jax-a/1-cache', 'jax-b/2-cache', 'jax-a/3-cache')):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'12345')
    os.utime(path, (1000 - i, 2000))
  cache.prune(tmp_path, 14)
  assert [p.name for p in sorted(tmp_path.rglob('*-cache'))] == [
    '1-cache',
    '2-cache',
  ]


def test_every_kind_of_processor_has_programs_of_its_own(tmp_path, monkeypatch):
  text = 'processor: 0\nmodel\t: 7\nMHz\t: {}\nflags\t: {}\n\nprocessor: 1\n'
  file = tmp_path / 'cpuinfo'
  monkeypatch.setattr(cache, '_CPUINFO', file)
  names = []
  for hertz, flags in (1, 'avx'), (2, 'avx'), (1, 'avx avx512'):
    file.write_text(text.format(hertz, flags))
    names.append(cache._processor())
  assert names[0] == names[1] != names[2]


def test_a_run_is_the_same_to_the_bit_with_kept_programs(tmp_path):
  states, kept = [], []
  for name in 'ab':
    program = runs.Program(
      tmp_path / name,
      '--config.deterministic=True',
      SEEDRL_CACHE=str(tmp_path / 'cache'),
      JAX_COMPILATION_CACHE_DIR='',
    )
    assert program.end() == (0, '')
    manager = checkpoints.Checkpoints(tmp_path / name / 'checkpoints')
    states.append(manager._read(manager.steps()[-1])[0])
    kept.append({p.name for p in (tmp_path / 'cache').rglob('*-cache')})
  # The second run compiled nothing.
  assert kept[0] and kept[0] == kept[1]
  assert states[0].keys() == states[1].keys()
  for key, value in states[0].items():
    np.testing.assert_array_equal(value, states[1][key])
