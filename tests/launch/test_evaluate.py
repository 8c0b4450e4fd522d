"""Tests for launch/evaluate.py as a program."""

import json
import pathlib
import re
import subprocess

import pytest

from tests import runs as programs
from tests.evaluation import evaluation_runs as runs


@pytest.fixture(scope='module')
def workdir(tmp_path_factory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp('run')
  runs.save(folder, runs.config(), 1.0)
  return folder


def _evaluate(
  *arguments: str, allowed: str = runs.ALLOWED[0]
) -> subprocess.CompletedProcess[str]:
  return programs.call('evaluate', allowed, *arguments)


def test_figures_and_video(workdir, tmp_path):
  result = _evaluate(
    *(f'--workdir={workdir}', '--episodes=3', '--save'),
    f'--video={tmp_path}/out.gif',
  )
  assert (result.returncode, result.stderr) == (0, '')
  assert re.search(r'return 5\.00 ± 0\.00 \(mean ± standard', result.stdout)
  assert (tmp_path / 'out.gif').read_bytes().startswith(b'GIF8')
  assert json.loads((workdir / 'evaluations.jsonl').read_text()) == {
    'checkpoint': 1,
    'actions': 'greedy',
    'returns': [5.0] * 3,
  }


def test_a_work_directory_runs_nothing_that_is_not_allowed(workdir):
  result = _evaluate(f'--workdir={workdir}', allowed='--allow_factory=a:b')
  assert (result.returncode, result.stderr) == (
    1,
    f'evaluate: --workdir={workdir} asks for '
    'tests.evaluation.evaluation_runs:chooser, '
    'which could run code from outside of this package; if you trust it, add '
    f'{runs.ALLOWED[0]}.\n',
  )


def test_error_is_one_sentence(workdir):
  refusal = programs.refusal(
    'evaluate', runs.ALLOWED[0], f'--workdir={workdir}', '--checkpoint=7'
  )
  assert refusal.startswith('evaluate: --')
  assert refusal.endswith('holds no checkpoint 7; there are: 1.')
