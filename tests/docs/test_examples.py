"""Tests that the pages' Python runs, with few frames."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests import runs
from tests.docs import pages

_EXAMPLES = pages.DOCS / 'examples'
_NOTEBOOKS = sorted((pages.DOCS / 'notebooks').glob('*.ipynb'))
_FRAMES = 4_000
# Shortens every run. The pages' own code is not changed.
_SHORT = f"""
import seedrl_jax

_make_config = seedrl_jax.make_config


def _short(*arguments, **overrides):
  config = _make_config(*arguments, **overrides)
  config.total_env_frames = min(config.total_env_frames, {_FRAMES})
  config.log.every_seconds = 0.05
  return config


seedrl_jax.make_config = _short
"""


def _python(page: pathlib.Path) -> list[str]:
  """Returns a page's blocks, without files that it shows."""
  return [text for title, text in pages.blocks(page, 'python') if not title]


def _run(code: str, folder: pathlib.Path) -> str:
  result = subprocess.run(
    [sys.executable, '-c', _SHORT + code],
    cwd=folder,
    env=runs.environment_of({'MPLBACKEND': 'Agg'}),
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  return result.stdout


@pytest.mark.parametrize('page', [*filter(_python, pages.PAGES)], ids=str)
def test_blocks_of_a_page_run_in_order(tmp_path, page):
  # The commands between them that later blocks need.
  exports = [
    text for _, text in pages.blocks(page, 'bash') if 'seedrl export' in text
  ]
  before, *after = '\n'.join(_python(page)).partition('# Where JAX is')
  _run(before, tmp_path)
  for command in exports:
    flags = command.split()[2:]
    assert runs.call('export', *flags, cwd=tmp_path).returncode == 0
  _run(''.join(after), tmp_path)


def test_examples_train(tmp_path):
  shutil.copytree(_EXAMPLES, tmp_path, dirs_exist_ok=True)
  out = _run((_EXAMPLES / 'train_my_agent.py').read_text(), tmp_path)
  assert 'actions left and right of the goal: [' in out
  result = runs.call(
    'evaluate',
    '--workdir=runs/line',
    *('--episodes=2', '--allow_factory=my_env:make'),
    *('--allow_factory=my_torso:make', '--allow_factory=my_agent:make_agent'),
    cwd=tmp_path,
  )
  assert result.returncode == 0, result.stderr


@pytest.mark.parametrize('page', pages.PAGES, ids=str)
def test_shown_files_are_the_examples(page):
  for title, text in pages.blocks(page, 'python'):
    assert not title or text == (_EXAMPLES / title).read_text()


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_and_has_outputs(tmp_path, path):
  cells = json.loads(path.read_text())['cells']
  code = [cell for cell in cells if cell['cell_type'] == 'code']
  assert all(cell['outputs'] for cell in code)
  assert 'return of an episode' in _run(
    '\n'.join(''.join(cell['source']) for cell in code), tmp_path
  )
