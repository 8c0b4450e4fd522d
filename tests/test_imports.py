"""Tests that packages import only what they may, and some of them no JAX."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGE = 'seedrl_jax'
# The packages that each package may import.
_MAY_IMPORT = {
  'types': set(),
  'runtime': {'types'},
  'net': {'runtime', 'types'},
  'envs': {'runtime', 'types'},
  'device_envs': {'envs', 'types'},
  'networks': {'runtime', 'types'},
  'agents': {'networks', 'runtime', 'types'},
  'replay': {'runtime', 'types'},
  'inference': {'agents', 'envs', 'replay', 'types'},
  'actors': {'configs', 'envs', 'net', 'runtime', 'types'},
  'engines': {'net', 'runtime'},
  'learner': {'agents', 'replay', 'types'},
  'hosts': {'agents', 'learner', 'replay', 'runtime', 'types'},
  'workers': {'agents', 'hosts', 'learner', 'replay', 'runtime', 'types'},
  'evaluation': {
    'agents',
    'configs',
    'envs',
    'inference',
    'networks',
    'runtime',
    'types',
  },
  'demonstrations': {
    'agents',
    'envs',
    'evaluation',
    'inference',
    'replay',
    'runtime',
    'types',
  },
  'configs': {'runtime'},
}
# The house: what a run needs. None of its packages imports the lab.
_HOUSE = {*_MAY_IMPORT, 'run'}
_MAY_IMPORT |= {
  'run': _HOUSE,
  'lab': _HOUSE,
  'api': {*_HOUSE, 'lab'},
  'launch': {*_HOUSE, 'lab'},
}
_JAX = ('jax', 'jaxlib', 'flax', 'optax', 'rlax', 'chex', 'orbax', 'distrax')
_TENSORFLOW = ('tensorflow',)
# The package's modules that configurations may import.
_IN_CONFIGS = r'seedrl_jax\.([\w.]+\.keys|runtime\.\w+|configs(\.\w+)+)'
# Tables of keys, which are no part of their packages, and what they may import.
_KEYS = r'seedrl_jax\.[\w.]+\.(keys|\w+_config)$'
_IN_KEYS = r'seedrl_jax\.(agents\.\w+_config|agents\.\w+\.keys|runtime(\.\w+)+)'
_WITHOUT_JAX = ('types', 'net', 'envs', 'replay', 'actors')
# Exceptions among the files of these packages, and what else they may import.
_WITH_JAX = {
  'local_inference.py': {'agents', 'inference', 'replay'},
}
# Runs only in the Python of Reverb's server.
_IN_SERVER = ('checkpoint_rewriting.py',)


def _sources(package: str) -> list[pathlib.Path]:
  file = _ROOT / _PACKAGE / f'{package}.py'
  folder = _ROOT / _PACKAGE / package
  return [file] if file.is_file() else sorted(folder.rglob('*.py'))


def _without_jax(package: str) -> list[pathlib.Path]:
  others = (*_WITH_JAX, *_IN_SERVER)
  return [path for path in _sources(package) if path.name not in others]


def _module(path: pathlib.Path) -> str:
  parts = path.relative_to(_ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def _imports(path: pathlib.Path) -> set[str]:
  """Returns the dotted names of a file's imports, those in functions, too."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text(), path)):
    if isinstance(node, ast.Import):
      names.update(alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{path}: relative import, line {node.lineno}'
      names.update(f'{node.module}.{alias.name}' for alias in node.names)
  return names


def _packages_of(names: set[str]) -> set[str]:
  dotted = [name.split('.') for name in names]
  return {parts[1] for parts in dotted if parts[0] == _PACKAGE and parts[1:]}


def _circle(graph: dict[str, set[str]]) -> list[str]:
  """Returns the nodes of circles, and those from which one gets there."""
  # Repeatedly removes what points at nothing that is left.
  while leaves := {x for x, targets in graph.items() if not targets & {*graph}}:
    graph = {x: targets for x, targets in graph.items() if x not in leaves}
  return sorted(graph)


def _top_levels(names: set[str]) -> set[str]:
  return {name.partition('.')[0] for name in names}


def test_every_file_is_in_a_package_of_the_table():
  entries = (_ROOT / _PACKAGE).glob('*')
  packages = {e.stem for e in entries if e.suffix == '.py' or e.is_dir()}
  assert packages - {'__init__', '__pycache__'} <= set(_MAY_IMPORT)


@pytest.mark.parametrize('package', _MAY_IMPORT)
def test_package_imports_only_what_the_table_allows(package):
  allowed = _MAY_IMPORT[package] | {package}
  for path in _sources(package):
    if path.name == 'keys.py' and package != 'runtime':
      continue
    names = {n for n in _imports(path) if not re.match(_KEYS, n)}
    more = _WITH_JAX.get(path.name, set())
    forbidden = _packages_of(names) - allowed - more
    forbidden |= _top_levels(names) & {'launch', 'configs', 'tests'}
    if package in _WITHOUT_JAX and path in _without_jax(package):
      forbidden |= _top_levels(names) & {*_JAX, *_TENSORFLOW}
    assert not forbidden, f'{path} imports {forbidden}'


@pytest.mark.parametrize('path', sorted((_ROOT / 'configs').rglob('*.py')))
def test_configs_import_only_keys_and_configs_of_the_package(path):
  ours = {name for name in _imports(path) if name.startswith(_PACKAGE)}
  assert all(re.fullmatch(_IN_CONFIGS, name) for name in ours)


def test_keys_can_be_imported_without_jax():
  paths = list((_ROOT / _PACKAGE).rglob('keys.py'))
  assert len(paths) > 10
  for path in paths:
    ours = {name for name in _imports(path) if name.startswith(_PACKAGE)}
    assert all(re.match(_IN_KEYS, name) for name in ours), path
  result = _import_without(_JAX, [_module(path) for path in paths])
  assert result.returncode == 0, result.stderr


def test_no_module_imports_itself_over_others():
  paths = sorted((_ROOT / _PACKAGE).rglob('*.py'))
  modules = {_module(path): path for path in paths}
  # An imported name is a module or an attribute of one.
  graph = {
    module: {
      name if name in modules else name.rpartition('.')[0]
      for name in _imports(path)
      if name.startswith(_PACKAGE)
    }
    for module, path in modules.items()
  }
  assert _circle(graph) == []


def test_no_folder_imports_itself_over_its_neighbours():
  for parent in [_ROOT / _PACKAGE, *(_ROOT / _PACKAGE).rglob('*/')]:
    graph = {}
    for folder in parent.glob('*/'):
      imported = {
        name
        for path in folder.rglob('*.py')
        if path.name != 'keys.py'
        for name in _imports(path)
        if not re.match(_KEYS, name)
      }
      prefix = _module(parent) + '.'
      graph[folder.name] = {
        name.removeprefix(prefix).partition('.')[0]
        for name in imported
        if name.startswith(prefix)
      } - {folder.name}
    assert _circle(graph) == [], parent


_IMPORT_WITHOUT = """
import importlib, importlib.abc, sys

blocked, modules = (argument.split(',') for argument in sys.argv[1:])


class Blocker(importlib.abc.MetaPathFinder):
  def find_spec(self, fullname, path=None, target=None):
    if fullname.partition('.')[0] in blocked:
      raise ModuleNotFoundError(f'{fullname} is blocked', name=fullname)
    return None


sys.meta_path.insert(0, Blocker())
for module in modules:
  importlib.import_module(module)
"""


@pytest.mark.parametrize('package', _WITHOUT_JAX)
def test_package_can_be_imported_where_jax_is_not(package):
  modules = [_module(path) for path in _without_jax(package)]
  # An actor's installation has no uv either.
  result = _import_without((*_JAX, *_TENSORFLOW, 'uv'), modules)
  assert result.returncode == 0, result.stderr


def test_only_runs_open_writers():
  """Those named in a work directory may be a stranger's code."""
  opener = f'{_PACKAGE}.runtime.writers.metrics_log'
  openers = {
    path.parent.name
    for path in (_ROOT / _PACKAGE).rglob('*.py')
    if opener in _imports(path)
  }
  assert openers == {'run'}


def test_blocked_package_fails_the_import():
  result = _import_without(_JAX, ['seedrl_jax.agents.base'])
  assert 'is blocked' in result.stderr


def _import_without(
  blocked: tuple[str, ...], modules: list[str]
) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [sys.executable, '-c', _IMPORT_WITHOUT, *map(','.join, (blocked, modules))],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
