"""A test of launch/compile.py with a real target."""

import json

import pytest

from tests import runs


@pytest.mark.slow
def test_a_small_network_compiles_for_a_tpu():
  pytest.importorskip('libtpu')
  done = runs.call(
    'compile',
    '--target=v5e:2x2',
    '--json',
    '--config=configs/r2d2_catch.py',
    '--config.topology.inference_to_training=1:1',
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  programs = {p['name']: p for p in found['programs']}
  taken, meant = programs['update']['donated']
  assert taken >= meant > 0
  assert programs['update']['flops'] > 0 < programs['update']['traffic']['size']
  assert [s['exact'] for s in found['splits']].count(True) == 1
