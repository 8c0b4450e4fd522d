"""Tests for hosts/joining.py with two processes on an awkward machine."""

import os
import subprocess
import sys

import pytest

from tests import runs
from tests.hosts import ports
from tests.patience import PATIENCE

_JOIN = """
import sys

import jax
from jax._src import xla_bridge

from seedrl_jax.hosts import joining

coordinator = joining.join(sys.argv[1], 2, int(sys.argv[2]), timeout=600.0)
print(jax.device_count(), xla_bridge.CUDA_VISIBLE_DEVICES.value)
coordinator.leave()
"""
# Of the third task of a node.
_SLURM = {
  'SLURM_JOB_ID': '1',
  'SLURM_STEP_NODELIST': 'node[1-2]',
  'SLURM_NTASKS': '2',
  'SLURM_PROCID': '0',
  'SLURM_LOCALID': '2',
}
_KUBERNETES = {'KUBERNETES_SERVICE_HOST': '10.0.0.1'}
_UNSHARE = ['unshare', '--map-root-user', '--uts']


@pytest.fixture(name='nameless')
def _nameless() -> list[str]:
  """Returns a command that runs another on a host of unknown name."""
  if subprocess.run([*_UNSHARE, 'true'], check=False).returncode:
    pytest.skip('needs permission to make a namespace for the host name')
  return [*_UNSHARE, 'sh', '-c', 'hostname nosuchname && exec "$@"', 'sh']


@pytest.mark.parametrize('host', ['127.0.0.1', 'localhost'])
def test_hosts_meet_on_any_machine(nameless: list[str], host: str):
  address = f'{host}:{ports.free()}'
  processes = [
    subprocess.Popen(
      [*nameless, sys.executable, '-c', _JOIN, address, str(index)],
      cwd=runs.ROOT,
      env={**os.environ, 'JAX_PLATFORMS': 'cpu', **scheduler},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for index, scheduler in enumerate([_SLURM, _KUBERNETES])
  ]
  for process in processes:
    # A guard against a hang; a busy machine may take long.
    out, err = process.communicate(timeout=PATIENCE)
    # All GPUs, and nothing about Kubernetes.
    assert (out, 'ubernetes' in err) == ('2 all\n', False), err
