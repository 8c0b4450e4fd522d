"""The queue on devices, and that of remote actors beside it."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import base, device, table_configs

_WIDTH = 2


@pytest.fixture
def store():
  number = types.ArraySpec((), np.dtype(np.float32))
  unroll = types.Unroll({'x': types.ArraySpec((3,), number.dtype)}, (), number)
  config = table_configs.QueueConfig(table_configs.TABLE, 8)
  return device.DeviceStore(config, unroll, _WIDTH, num_blocks=2)


def test_a_batch_comes_from_one_source_and_sources_take_turns(store):
  local = store.table(table_configs.TABLE)
  remote = store.table(device.REMOTE_TABLE)
  sampler = local.sampler(4)

  def fill(*sources):
    for source in sources:
      source.insert(source.allocate())

  def draw():
    sample = sampler.sample(wait=False)
    kinds = {isinstance(x, device.DeviceBlock) for x in sample.blocks}
    assert len(sample.blocks) == 2
    sample.release()
    (is_local,) = kinds
    return is_local

  fill(local, remote)
  with pytest.raises(base.RateLimited):
    draw()
  fill(remote)
  assert not draw()
  fill(local, remote, remote)
  # The device's first: the actors' batch was the last one.
  assert [draw(), draw()] == [True, False]
  assert store.info() == {table_configs.TABLE: local.info()}
  assert local.info().samples == 12 and remote.info().samples == 8


def test_an_interrupt_ends_waits_of_both(store):
  store.interrupt()
  for name in (table_configs.TABLE, device.REMOTE_TABLE):
    table = store.table(name)
    with pytest.raises(base.StoreClosed):
      table.insert(table.allocate())
