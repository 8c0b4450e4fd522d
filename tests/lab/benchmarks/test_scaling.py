"""Tests of `seedrl_jax.lab.benchmarks.scaling`."""

import pytest

from seedrl_jax.lab.benchmarks import scaling
from tests import runs


@pytest.mark.parametrize(
  ('devices', 'processes', 'training', 'inference'),
  [(1, 1, 1, 1), (4, 1, 4, 2), (8, 1, 8, 3), (8, 2, 4, 2)],
)
def test_three_training_devices_have_an_inference_device(
  devices, processes, training, inference
):
  split = scaling.Split(devices, processes)
  assert (split.training, split.inference) == (training, inference)


def test_what_the_slowest_process_takes_counts():
  turn = scaling.slowest([scaling.Turn(5.0, 10.0), scaling.Turn(6.0, 9.0)])
  assert turn == scaling.Turn(6.0, 10.0)
  assert turn.overhead == pytest.approx(0.4)


def test_updates_of_two_processes_are_timed():
  config = runs.tiny(batch_size=1, env__num_envs=1, topology__max_devices=0)
  row = scaling.measure(config, scaling.Split(2, 2), 2)
  assert (row['devices'], row['processes']) == ('2', '2')
  assert all(float(row[part]) > 0 for part in ('cycle, ms', 'alone, ms'))
