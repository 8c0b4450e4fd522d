"""Tests the split of eight simulated devices."""

from typing import NamedTuple

import jax
import pytest

from seedrl_jax.learner import topology


def _split(ratio, num_devices, max_devices=0):
  devices = jax.devices()[:num_devices]
  split = topology.make_topology(ratio, devices, max_devices)
  used = [*split.inference, *split.training]
  if not split.shared:
    # In order and disjoint; inference has the first ones.
    assert used == devices[: len(used)]
  return len(split.inference), len(split.training)


@pytest.mark.parametrize(
  ('ratio', 'num_devices', 'max_devices', 'expected'),
  [
    ('1:3', 8, 0, (2, 6)),
    ('2:6', 4, 0, (1, 3)),
    (' 3:1 ', 4, 0, (3, 1)),
    ('1:3', 6, 4, (1, 3)),
  ],
)
def test_split(ratio, num_devices, max_devices, expected):
  assert _split(ratio, num_devices, max_devices) == expected


@pytest.mark.parametrize(
  ('num_devices', 'unrolls', 'expected'),
  [(4, 6, '1:3'), (4, 8, '1:1'), (6, 12, '1:1'), (8, 12, '1:3'), (1, 3, '1:1')],
)
def test_default_ratio_divides_the_batch(num_devices, unrolls, expected):
  assert topology.default_ratio(num_devices, unrolls) == expected


@pytest.mark.parametrize('ratio', ['1:1', '4:4'])
def test_single_device_serves_both(ratio):
  split = topology.make_topology(ratio, jax.devices(), max_devices=1)
  assert split.inference == split.training == tuple(jax.devices()[:1])
  assert split.shared
  assert split.describe() == '1 cpu device for inference and training'


@pytest.mark.parametrize(
  ('ratio', 'num_devices', 'max_devices', 'sentence'),
  [
    ('1', 4, 0, 'not a ratio of two positive'),
    ('0:3', 4, 0, 'not a ratio of two positive'),
    ('1.5:2', 4, 0, 'not a ratio of two positive'),
    ('1:3:4', 4, 0, 'not a ratio of two positive'),
    ('1:3', 4, 5, '=5: this host has 4'),
    ('1:3', 6, 0, 'the 6 devices .*max_devices to a multiple of 4'),
    ('1:3', 2, 0, 'the 2 devices .*max_devices to a multiple of 4'),
    ('1:1', 3, 0, 'the 3 devices .*max_devices to a multiple of 2'),
  ],
)
def test_split_that_cannot_be_is_refused(
  ratio, num_devices, max_devices, sentence
):
  with pytest.raises(ValueError, match=sentence):
    _split(ratio, num_devices, max_devices)


class _Device(NamedTuple):
  id: int
  process_index: int


def test_training_cores_of_all_hosts_come_host_by_host():
  # A possible order if hosts' chips are wired across.
  devices = [_Device(i, host) for i, host in enumerate([0, 1, 1, 0] * 2)]
  training = topology.all_training('1:3', devices)
  assert [d.process_index for d in training] == [0, 0, 0, 1, 1, 1]
  for host in range(2):
    group = [d for d in devices if d.process_index == host]
    split = topology.make_topology('1:3', group)
    assert training[3 * host : 3 * host + 3] == split.training
  assert len(topology.all_training('1:1', devices, max_devices=1)) == 2
