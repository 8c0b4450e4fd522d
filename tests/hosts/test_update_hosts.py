"""The update over two processes equals the one over one."""

import os
import pathlib
import subprocess
import sys

import numpy as np

from tests import runs
from tests.hosts import ports, update_process
from tests.patience import PATIENCE

_SCRIPT = runs.ROOT / 'tests/hosts/update_process.py'


def _start(
  index: int, count: int, coordinator: str, folder: pathlib.Path
) -> subprocess.Popen:
  return subprocess.Popen(
    [sys.executable, _SCRIPT, *map(str, (index, count, coordinator, folder))],
    env={
      **os.environ,
      'PYTHONPATH': str(runs.ROOT),
      'JAX_PLATFORMS': 'cpu',
      'XLA_FLAGS': f'--xla_force_host_platform_device_count={4 // count}',
    },
    stderr=subprocess.PIPE,
    text=True,
  )


def test_one_process_of_four_devices_and_two_of_two_update_alike(
  tmp_path: pathlib.Path,
):
  coordinator = f'127.0.0.1:{ports.free()}'
  processes = [_start(0, 1, '', tmp_path)] + [
    _start(i, 2, coordinator, tmp_path) for i in range(2)
  ]
  for process in processes:
    # A guard against a hang; a busy machine may take long.
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
  one, first, second = (
    np.load(tmp_path / f'{name}.npz') for name in ('0of1', '0of2', '1of2')
  )
  names = [name for name in one.files if name.startswith('leaf')]
  prints = [name for name in one.files if name.startswith('prints')]
  agents = {'toy', *update_process._AGENTS}
  assert agents == {name.split()[1] for name in names}
  assert agents == {name.split()[1] for name in prints}
  for name in names:
    np.testing.assert_allclose(first[name], one[name], rtol=0, atol=1e-5)
    # Between the hosts, to the last bit.
    np.testing.assert_array_equal(first[name], second[name])
  for name in prints:
    both = np.concatenate([first[name], second[name]])
    assert (both == both[0]).all()
  # So are statistics, and they are those of all hosts' numbers.
  rows = np.concatenate([first['statistics'], second['statistics']])
  assert len(rows) == 4 and (rows == rows[0]).all()
  np.testing.assert_allclose(rows[0], first['moments'], rtol=1e-5)
  # Each host has the priorities of its own unrolls.
  both = [first['priorities'], second['priorities']]
  assert [len(x) for x in both] == [8, 8]
  np.testing.assert_allclose(np.concatenate(both), one['priorities'], atol=1e-5)
