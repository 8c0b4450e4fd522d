"""Tests of `benchmarks.startup`, with a program in a run's place."""

import pytest

from seedrl_jax.lab import launching
from seedrl_jax.lab.benchmarks import startup

_PROGRAM = """
import os, pathlib, signal, sys

assert '--config=toy' in sys.argv
assert 'JAX_COMPILATION_CACHE_DIR' not in os.environ
compiled = pathlib.Path(os.environ['SEEDRL_CACHE'], 'compiled')
if compiled.exists() and FAILS:
  sys.exit('train: it is broken.')
compiled.touch()
for part in 'imports', 'first batch', 'first update':
  print(f'Ready: {part}.', file=sys.stderr, flush=True)
signal.pause()
"""


@pytest.fixture(name='program')
def program_fixture(tmp_path, monkeypatch):
  path = tmp_path / 'train.py'
  monkeypatch.setattr(launching, 'LAUNCH', tmp_path)
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', 'elsewhere')
  return path


def test_every_part_of_cold_and_warm_starts_has_a_row(program):
  program.write_text(_PROGRAM.replace('FAILS', 'False'))
  rows = list(startup.measure('toy', 2))
  assert [row['ready'] for row in rows] == [
    'imports',
    'first batch',
    'first update',
    'total',
  ]


def test_a_run_that_fails_is_told(program):
  # Only the warm one, which finds what the cold one left.
  program.write_text(_PROGRAM.replace('FAILS', 'True'))
  with pytest.raises(ValueError, match='first update: train: it is broken'):
    list(startup.measure('toy', 1))
