"""Tests of launch/compile.py: its refusals, and a real target."""

import re

import pytest

from tests import runs


@pytest.mark.parametrize(
  ('arguments', 'sentence'),
  [
    ([], 'compile: --target is missing; give one, as --target=v5e:2x4.'),
    (['--target=v5e'], '--target=v5e: shape of the grid of chips not'),
    (['--target=v5e:2x2', '--config=nothing'], 'there is no such file'),
    (['--target=v5e:2x2', 'now'], 'compile: unexpected arguments: now'),
  ],
)
def test_wrong_command_line_is_rejected_in_a_sentence(arguments, sentence):
  done = runs.call('compile', *arguments)
  assert done.returncode != 0
  assert sentence in done.stderr
  assert 'Traceback' not in done.stderr


@pytest.mark.slow
def test_a_small_network_compiles_for_a_tpu():
  pytest.importorskip('libtpu')
  done = runs.call(
    'compile',
    '--target=v5e:2x2',
    '--config=configs/r2d2_catch.py',
    '--config.topology.inference_to_training=1:1',
  )
  assert done.returncode == 0, done.stderr
  # The update takes over the memory of its arguments.
  assert re.search(r'^\| update \|.* yes \| [\d.,]+ µs', done.stdout, re.M)
  assert '| 1:1 |' in done.stdout
