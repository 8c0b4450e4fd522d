"""Tests of `seedrl_jax.runtime.process`."""

import os
import subprocess
import sys

import pytest

from seedrl_jax.runtime import process

_PROGRAM = """
import os, sys, logging
from seedrl_jax.runtime import process
process.configure()
process.configure()
import jax
import jax.numpy as jnp
assert float(jnp.ones(3).sum()) == 3.0
print(os.environ.get('XLA_FLAGS', ''))
print(jax.config.read('jax_cpu_enable_async_dispatch'))
print(sys.getswitchinterval() < 0.005)
print(os.sched_getscheduler(0) == os.SCHED_BATCH)
"""


def _run(**env: str) -> list[str]:
  clean = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS'}
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM],
    env=clean | env,
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stdout.splitlines()


def test_jax_works_with_what_is_set_and_setting_it_twice_is_as_once():
  flags, *others = _run()
  assert flags.count('--xla_cpu_experimental_ynn_fusion_type') == 1
  assert others == ['False', 'True', 'True']


@pytest.mark.parametrize(
  'own',
  [
    '--xla_force_host_platform_device_count=2',
    '--xla_cpu_experimental_ynn_fusion_type=invalid',
  ],
)
def test_keeps_the_users_own_flags(own):
  flags = _run(XLA_FLAGS=own)[0]
  assert own in flags
  assert flags.count('--xla_cpu_experimental_ynn_fusion_type') == 1


def test_inference_threads_take_processors_in_turn():
  cores = sorted(os.sched_getaffinity(0))
  assert process.pinned_core(-1, 0) is None
  assert process.pinned_core(cores[0], 0) == cores[0]
  assert process.pinned_core(cores[0], len(cores) - 1) == cores[-1]
  with pytest.raises(ValueError, match='inference_affinity_offset'):
    process.pinned_core(cores[-1], 1)
