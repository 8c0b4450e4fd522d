"""Tests for seedrl_jax/runtime/process.py, most of them in processes."""

import os
import signal
import subprocess
import sys

import pytest

from seedrl_jax.runtime import process

_IMPORT = 'import os, signal, sys; from seedrl_jax.runtime import process\n'


def _run(
  program: str, *start: str, **env: str
) -> subprocess.CompletedProcess[str]:
  """Runs a program after the command `start`."""
  clean = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
  return subprocess.run(
    [*start, sys.executable, '-c', _IMPORT + program],
    env=clean | env,
    capture_output=True,
    text=True,
    check=False,
  )


def _words(program: str, **env: str) -> list[str]:
  """Returns the words of a program's output, which has no others."""
  ended = _run(program, **env)
  assert (ended.returncode, ended.stderr) == (0, '')
  return ended.stdout.split()


_CONFIGURE = """
process.configure()
process.configure()
import jax
import jax.numpy as jnp
assert float(jnp.ones(3).sum()) == 3.0
assert not jax.config.read('jax_cpu_enable_async_dispatch')
assert sys.getswitchinterval() < 0.005
assert os.sched_getscheduler(0) == os.SCHED_BATCH
print(os.environ.get('XLA_FLAGS', ''))
"""


@pytest.mark.parametrize(
  'own',
  [
    '',
    '--xla_force_host_platform_device_count=2',
    '--xla_cpu_experimental_ynn_fusion_type=individual_dot',
  ],
)
def test_jax_works_with_what_is_set_and_the_users_own_flags(own):
  flags = _words(_CONFIGURE, **({'XLA_FLAGS': own} if own else {}))
  assert own in ' '.join(flags)
  names = [flag.partition('=')[0] for flag in flags]
  assert names.count('--xla_cpu_experimental_ynn_fusion_type') == 1


_FORK = """
import jax
if {used}:
  jax.devices()
  # As another thread may hold it, which the child lacks.
  jax._src.xla_bridge._backend_lock.acquire()
if child := os.fork():
  os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
  process.configure()
except RuntimeError as e:
  print(e)
if not {used}:
  print(len(jax.devices()))
sys.stdout.flush()
# The interpreter's end would wait for the threads.
os._exit(0)
"""


@pytest.mark.parametrize('used', [False, True])
def test_a_fork_without_jax_s_threads_is_refused(used):
  ended = _run(_FORK.format(used=used), JAX_PLATFORMS='cpu')
  assert ended.returncode == 0
  assert ended.stdout.startswith('This process was forked' if used else '1')


_DETERMINISTIC = """
import jax
if 'STARTED' in os.environ:
  jax.devices()
  jax.default_backend = lambda: os.environ['STARTED']
process.make_gpu_deterministic()
assert len(jax.devices())
print(os.environ.get('XLA_FLAGS', ''))
"""
_GPU_FLAG = '--xla_gpu_deterministic_ops=true'
_OWN_FLAG = '--xla_gpu_deterministic_ops=false'


@pytest.mark.parametrize(
  ('before', 'started', 'after'),
  [
    ('', None, [_GPU_FLAG]),
    (_OWN_FLAG, None, [_OWN_FLAG, _GPU_FLAG]),
    (_GPU_FLAG, 'gpu', [_GPU_FLAG]),
    ('', 'cpu', []),
  ],
)
def test_a_gpu_becomes_deterministic(before, started, after):
  env = {'XLA_FLAGS': before} | ({'STARTED': started} if started else {})
  assert _words(_DETERMINISTIC, JAX_PLATFORMS='cpu', **env) == after


def test_a_gpu_that_has_started_cannot_become_deterministic():
  ended = _run(_DETERMINISTIC, JAX_PLATFORMS='cpu', STARTED='gpu')
  assert 'ValueError: --config.deterministic=True: JAX has' in ended.stderr
  assert f'start again with XLA_FLAGS={_GPU_FLAG}.' in ended.stderr


def test_inference_threads_take_processors_in_turn():
  cores = sorted(os.sched_getaffinity(0))
  assert process.pinned_core(-1, 0) is None
  assert process.pinned_core(cores[0], 0) == cores[0]
  with pytest.raises(ValueError, match='inference_affinity_offset'):
    process.pinned_core(cores[-1], 1)


@pytest.mark.parametrize(
  ('libc', 'before', 'after'),
  [
    ('glibc', '', 'glibc.malloc.hugetlb=1'),
    ('glibc', 'x.y=1', 'x.y=1:glibc.malloc.hugetlb=1'),
    ('glibc', 'glibc.malloc.hugetlb=0', None),
    ('', '', None),
  ],
)
def test_restarts_once_with_huge_pages(monkeypatch, libc, before, after):
  calls = []
  monkeypatch.setattr(process.platform, 'libc_ver', lambda: (libc, '2.36'))
  monkeypatch.setattr(process.os, 'execv', lambda *a: calls.append(a))
  monkeypatch.setattr(process.sys, 'orig_argv', ['python', '-u', 'x.py', '--y'])
  monkeypatch.setenv('GLIBC_TUNABLES', before)
  for _ in range(2):
    process.restart_with_huge_pages()
  command = (sys.executable, [sys.executable, '-u', 'x.py', '--y'])
  assert calls == ([command] if after else [])
  assert os.environ['GLIBC_TUNABLES'] == (after or before)


@pytest.mark.parametrize(
  ('wanted', 'actual'), [('cuda', 'cuda,cpu'), ('tpu,cpu', 'tpu,cpu')]
)
def test_the_host_is_a_platform_beside_those_that_a_user_asks_for(
  wanted, actual
):
  program = 'process.configure(); import jax; print(jax.config.jax_platforms)'
  assert _words(program, JAX_PLATFORMS=wanted) == [actual]


# Prints the cache's folder, its hits, and whether donated memory was used.
_COMPILE = """
import resource
import jax
import jax.numpy as jnp

hits = []
process.configure()
jax.monitoring.register_event_listener(
  lambda name, **_: hits.append(name) if name.endswith('/cache_hits') else None
)
if 'FULL' in os.environ:
  resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
x = jnp.arange(4096.0)
given = x.unsafe_buffer_pointer()
y = jax.jit(lambda x: 2.0 * x + 1.0, donate_argnums=0)(x)
assert float(y[3]) == 7.0
print(jax.config.jax_compilation_cache_dir, len(hits) > 0)
print(y.unsafe_buffer_pointer() == given, x.is_deleted())
"""


def _compile(**env: str) -> list[str]:
  own = {'JAX_PLATFORMS': 'cpu', 'JAX_COMPILATION_CACHE_DIR': ''}
  return _words(_COMPILE, **(own | env))


def test_programs_are_kept_and_write_where_they_should(tmp_path):
  cold, warm = [_compile(SEEDRL_CACHE=str(tmp_path)) for _ in range(2)]
  (folder,) = tmp_path.glob('jax-*')
  assert folder.stat().st_mode & 0o777 == 0o700
  assert cold == [str(folder), 'False', 'True', 'True']
  assert warm == [str(folder), 'True', 'True', 'True']


@pytest.mark.parametrize(
  ('env', 'folder'),
  [
    ({'JAX_COMPILATION_CACHE_DIR': '{}/own'}, '{}/own'),
    ({'JAX_ENABLE_COMPILATION_CACHE': '0'}, ''),
  ],
)
def test_jax_s_own_variables_come_first(tmp_path, env, folder):
  env = {k: v.format(tmp_path) for k, v in env.items()}
  words = _compile(SEEDRL_CACHE=str(tmp_path / 'ours'), **env)
  assert words[:-3] == folder.format(tmp_path).split()
  assert not (tmp_path / 'ours').exists()


@pytest.mark.parametrize('folder', ['/dev/null/cache', '{}'])
def test_a_folder_that_takes_nothing_costs_only_time(tmp_path, folder):
  words = _compile(FULL='1', SEEDRL_CACHE=folder.format(tmp_path))
  assert words[-2:] == ['True', 'True']


def test_programs_used_longest_ago_make_room(tmp_path):
  for i, name in enumerate(('jax-a/1-cache', 'jax-b/2-cache', 'jax-a/3-cache')):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b'12345')
    os.utime(path, (1000 - i, 2000))
  process.prune(tmp_path, 14)
  left = sorted(path.name for path in tmp_path.rglob('*-cache'))
  assert left == ['1-cache', '2-cache']


def test_every_kind_of_processor_has_programs_of_its_own(tmp_path, monkeypatch):
  text = 'processor: 0\nmodel\t: 7\nMHz\t: {}\nflags\t: {}\n\nprocessor: 1\n'
  file = tmp_path / 'cpuinfo'
  monkeypatch.setattr(process, '_CPUINFO', file)
  names = []
  for hertz, flags in (1, 'avx'), (2, 'avx'), (1, 'avx avx512'):
    file.write_text(text.format(hertz, flags))
    names.append(process._processor())
  assert names[0] == names[1] != names[2]


_DEFER = """
process.defer_packages()
process.defer_packages()
import envpool, rlax, distrax
deferred = {'matplotlib', 'tensorflow_probability'}
assert not deferred & sys.modules.keys()
assert len(envpool.list_all_envs()) > 1000
assert envpool.make_spec('Catch-v0').config.width == 5
from envpool.toy_text import CatchEnvSpec
assert not hasattr(envpool.toy_text, 'nothing')
first = distrax.DistributionLike
print(distrax.Bernoulli(probs=0.5).probs, first is distrax.DistributionLike)
"""


def test_packages_are_complete_once_they_are_used():
  assert _words(_DEFER) == ['0.5', 'False']


@pytest.mark.parametrize(
  'number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
)
@pytest.mark.parametrize('nohup', [False, True])
def test_signals_to_stop_call_the_handler(number, nohup):
  start = ('sh', '-c', 'trap \'\' HUP; exec "$@"', 'sh') if nohup else ()
  ended = _run(
    'process.on_stop(lambda n, frame: sys.exit(n))\n'
    f'os.kill(os.getpid(), {int(number)})',
    *start,
  )
  expected = 0 if nohup and number == signal.SIGHUP else number
  assert (ended.returncode, ended.stderr) == (expected, '')
