"""Tests that a wheel is the whole product, from an empty folder."""

import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import venv

import pytest

import seedrl_jax
from seedrl_jax.launch import main
from tests import runs

_PARTS = ('seedrl_jax', 'configs', 'launch')
_FILES = ('pyproject.toml', 'README.md', 'LICENSE', 'NOTICE')
_TRAIN = (
  *('train', '--config=vtrace_catch', '--workdir=run'),
  *('--config.total_env_frames=2000', '--config.env.num_envs=4'),
  '--config.topology.max_devices=1',
)
_PYTHON = """
import importlib.metadata, pathlib, sys
import seedrl_jax
place = pathlib.Path(seedrl_jax.__file__)
assert place.is_relative_to(sys.prefix), place
assert (place.parent / 'py.typed').exists()
assert (place.parent / 'replay/reverb/server/requirements.txt').exists()
assert importlib.metadata.version('seedrl-jax') == seedrl_jax.__version__
assert seedrl_jax.make_config('ppo_mujoco', seed=2).seed == 2
print(seedrl_jax.load_policy('run').checkpoint)
"""


@pytest.fixture(name='installed', scope='module')
def _installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Returns a virtual environment with a wheel; it borrows what that needs."""
  folder = tmp_path_factory.mktemp('wheel')
  source = folder / 'source'
  ignored = shutil.ignore_patterns('__pycache__', '*.egg-info')
  for part in _PARTS:
    shutil.copytree(
      runs.ROOT / part, source / part, symlinks=True, ignore=ignored
    )
  for file in _FILES:
    shutil.copy(runs.ROOT / file, source)
  _call(
    *(sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-index'),
    *('--no-build-isolation', '--wheel-dir', folder, source),
  )
  (wheel,) = folder.glob('*.whl')
  environment = folder / 'venv'
  venv.create(environment, symlinks=True)
  python = environment / 'bin/python'
  _call(
    *(sys.executable, '-m', 'pip', '--python', python, 'install'),
    *('--no-deps', '--no-index', wheel),
  )
  # Files there that name other folders, such as this clone, are not followed.
  (folder,) = environment.glob('lib/python*/site-packages')
  (folder / 'borrowed.pth').write_text('\n'.join(site.getsitepackages()))
  return environment


def _call(*command: object, cwd: pathlib.Path | None = None) -> str:
  unset = {'PYTHONPATH', 'PYTHONHOME', 'VIRTUAL_ENV'}
  variables = {k: v for k, v in os.environ.items() if k not in unset}
  result = subprocess.run(
    [str(part) for part in command],
    cwd=cwd,
    env={**variables, 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stdout + result.stderr
  return result.stdout


def test_trains_evaluates_plots_and_exports_from_an_empty_folder(
  installed, tmp_path
):
  command = installed / 'bin/seedrl'
  assert 'Finished after' in _call(command, *_TRAIN, cwd=tmp_path)
  out = _call(
    command, 'evaluate', '--workdir=run', '--episodes=2', cwd=tmp_path
  )
  assert 'Catch-v0, checkpoint' in out
  _call(command, 'plot', '--workdir=run', cwd=tmp_path)
  _call(command, 'export', '--workdir=run', cwd=tmp_path)
  assert {'plot.png', 'export'} <= {
    p.name for p in (tmp_path / 'run').iterdir()
  }
  out = _call(installed / 'bin/python', '-c', _PYTHON, cwd=tmp_path)
  assert int(out) > 0


def test_the_command_names_its_programs(installed, tmp_path):
  out = _call(installed / 'bin/seedrl', cwd=tmp_path)
  assert all(f'\n  {name} ' in out for name in main.PROGRAMS)
  _call(installed / 'bin/python', '-c', _IMPORTS, *main.PROGRAMS, cwd=tmp_path)


# Imports programs, each in a process, as several define the same flags. All
# have what the first import brings.
_IMPORTS = """
import importlib, os, sys
import seedrl_jax.configs.base
for name in sys.argv[1:]:
  if not os.fork():
    assert importlib.import_module(f'seedrl_jax.launch.{name}').__doc__
    os._exit(0)
  assert not os.wait()[1], name
"""


def test_every_program_is_one_of_the_command():
  folder = pathlib.Path(main.__file__).parent
  programs = {
    path.stem
    for path in folder.glob('*.py')
    if re.search(r'^ +(program|train)\.(run|start)\(', path.read_text(), re.M)
  }
  assert programs == {*main.PROGRAMS}
  assert seedrl_jax.__version__


def test_an_unknown_program_is_refused():
  result = subprocess.run(
    [sys.executable, '-m', 'seedrl_jax.launch.main', 'trian'],
    env=runs.environment_of({}),
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 1
  assert result.stderr.startswith('seedrl: there is no program trian; the n')
