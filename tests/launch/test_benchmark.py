"""Tests of launch/benchmark.py on tiny cases, and of its refusals."""

import json
import pathlib

import pytest

from tests import runs


@pytest.mark.parametrize(
  ('arguments', 'sentence'),
  [
    (
      [],
      'benchmark: say what to measure: one of ceilings, system, replay, '
      'actors, modes.',
    ),
    (['system', '--case=pong'], 'There is no case pong; take one of free, '),
    (['system', '--windows=1'], '--windows=1'),
    (['system', '--backend=redis'], '--backend=redis'),
    (
      ['system', '--backend=reverb', '--reverb_python=/nowhere/python'],
      '/nowhere/python',
    ),
    (
      ['actors', '--case=free'],
      'There is no case free; take one of cartpole, ',
    ),
    (['actors', '--envs_per_actor=3'], 'must be a multiple of 2.'),
    (['replay', '--case=pong'], '--case=pong: replay has clients, r2d2.'),
  ],
)
def test_wrong_command_line_is_told_in_a_sentence(arguments, sentence):
  done = runs.call('benchmark', *arguments)
  assert done.returncode != 0
  assert sentence in done.stderr
  assert 'Traceback' not in done.stderr


def _measure(folder: pathlib.Path, *arguments: str) -> tuple[str, list[dict]]:
  """Returns the printed text and the rows of figures."""
  path = folder / 'figures.json'
  done = runs.call('benchmark', *arguments, '--seconds=0.05', f'--json={path}')
  assert done.returncode == 0, done.stderr
  return done.stdout, json.loads(path.read_text())['cases']


@pytest.mark.usefixtures('server_python')
def test_a_case_is_measured_on_one_store_after_the_other(tmp_path):
  text, rows = _measure(
    tmp_path,
    'ceilings',
    '--case=cartpole32',
    '--backend=reverb',
    '--backend=embedded',
  )
  assert [row['backend'] for row in rows] == ['reverb', 'embedded']
  for row in rows:
    assert f'cartpole32 ({row["backend"]} store)' in text
  # Over a network, and within this process.
  over, within = (row['ceilings']['store'] for row in rows)
  # The worst and the best window, as some may have stalled.
  assert 0 < over['minimum'] < within['maximum']


def test_remote_environments_are_timed_against_local_ones(tmp_path):
  text, rows = _measure(
    tmp_path,
    'actors',
    '--case=cartpole',
    '--actors=1',
    '--envs_per_actor=4',
  )
  assert [row['transport'] for row in rows] == ['unix', 'tcp'] * 2
  for row, envs in zip(rows, ['0 x 0', '0 x 0', '1 x 4', '1 x 4'], strict=True):
    assert f' B | {row["transport"]} | {envs} |' in text
