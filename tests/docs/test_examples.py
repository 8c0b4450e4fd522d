"""Tests that the pages' Python runs, with few frames."""

import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import types

import pytest

import seedrl_jax
from tests import runs
from tests.docs import pages

_NOTEBOOKS = sorted((pages.DOCS / 'notebooks').glob('*.ipynb'))
# Shortens every run. The pages' own code is not changed.
_SHORT = """
import seedrl_jax.api

_whole_config = seedrl_jax.api._whole_config


def _short(*arguments):
  config = _whole_config(*arguments)
  config.total_env_frames = min(config.total_env_frames, 4_000)
  config.log.every_seconds = 0.05
  if config.num_eval_envs:
    # Enough for 20 episodes, which a best checkpoint needs.
    config.num_eval_envs = 40
  return config


seedrl_jax.api._whole_config = _short
"""


def _python(page: pathlib.Path) -> str:
  """Returns a page's blocks, without files that it shows."""
  blocks = pages.blocks(page, 'python')
  return '\n'.join(text for title, text in blocks if not title)


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


@pytest.mark.parametrize(
  'page', [page for page in pages.PAGES if _python(page)], ids=str
)
def test_blocks_of_a_page_run_in_order(tmp_path, page):
  before, mark, after = _python(page).partition('# Where JAX is')
  _run(before, tmp_path)
  if mark:
    (command,) = (x for _, x in pages.blocks(page, 'bash') if ' export ' in x)
    flags = command.split()[2:]
    assert runs.call('export', *flags, cwd=tmp_path).returncode == 0
    _run(mark + after, tmp_path)


def test_examples_train(tmp_path):
  shutil.copytree(pages.EXAMPLES, tmp_path, dirs_exist_ok=True)
  out = _run((tmp_path / 'train_my_agent.py').read_text(), tmp_path)
  assert 'actions left and right of the goal: [' in out


def test_optuna_searches(tmp_path):
  pytest.importorskip('optuna')
  code = (pages.EXAMPLES / 'tune_with_optuna.py').read_text()
  for usual, small in ('n_trials=10', 'n_trials=2'), ('=1e5', '=2e4'):
    assert usual in code
    code = code.replace(usual, small)
  out = _run(code, tmp_path)
  assert re.search("^best: {'rate': .*, 'entropy': .*} [1-9]", out, re.M)
  assert list(tmp_path.glob('runs/optuna/*/1/summary.json'))


def test_optuna_ends_bad_trials(monkeypatch):
  pytest.importorskip('optuna')

  def train(name, workdir, on_report, **values):
    number = int(pathlib.Path(workdir).name)
    summary = types.SimpleNamespace(
      status='finished', mean_return_100=100 - number, env_frames=5e4 + number
    )
    summary.stop = lambda: setattr(summary, 'status', 'stopped')
    on_report(summary)
    return summary

  monkeypatch.setattr(seedrl_jax, 'train', train)
  names = runpy.run_path(str(pages.EXAMPLES / 'tune_with_optuna.py'))
  states = [trial.state.name for trial in names['study'].trials]
  assert states == ['COMPLETE'] * 3 + ['PRUNED'] * 7


@pytest.mark.parametrize('page', pages.PAGES, ids=str)
def test_shown_files_are_the_examples(page):
  for title, text in pages.blocks(page, 'python'):
    assert not title or text == (pages.EXAMPLES / title).read_text()


@pytest.mark.parametrize('path', _NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_outputs(path):
  cells = json.loads(path.read_text())['cells']
  assert all(cell['outputs'] for cell in cells if cell['cell_type'] == 'code')
