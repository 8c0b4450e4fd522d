"""A test of launch/compile.py with a real target."""

import re

import pytest

from tests import runs


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
