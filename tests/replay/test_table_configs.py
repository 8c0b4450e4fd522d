"""The demonstrations' table, from a run's configuration."""

import os

import numpy as np
import pytest

from configs import base as configs
from seedrl_jax import replay
from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.replay import blocks, table_configs
from seedrl_jax.replay.reverb.client import tables


def _config(sampler: str = 'prioritized', **section):
  config = configs.get_config()
  config.replay.update(
    sampler=sampler, max_size=50, max_times_sampled=0, priority_exponent=0.7
  )
  config.demonstrations.update(section)
  return config


@pytest.fixture(name='folder')
def folder_fixture(toy, tmp_path) -> str:
  layout = blocks.UnrollLayout(toy.spec())
  path = os.fspath(tmp_path / 'demos')
  with folder_lib.create(path, layout) as writer:
    writer.add(layout.new_block(7), np.ones(7), 7)
    writer.manifest = folder_lib.Manifest(
      'Toy-v0', 7, 1, 0.0, 'a test', layout.signature()
    )
  return path


def test_without_demonstrations_there_is_one_table():
  (only,) = table_configs.table_configs(_config())
  assert only == table_configs.table_config(_config())


@pytest.mark.parametrize('sampler', ['prioritized', 'uniform'])
def test_demonstrations_are_drawn_as_unrolls_are_and_stay(folder, sampler):
  config = _config(sampler, path=folder, fraction=0.25)
  first, second = table_configs.table_configs(config)
  assert first == table_configs.table_config(config)
  assert second == replay.TableConfig(
    'demonstrations',
    sampler,
    max_size=7,
    max_times_sampled=0,
    samples_per_insert=0.0,
    priority_exponent=0.7,
    block_width=1,
  )


def test_their_number_can_be_given(folder):
  config = _config(path=folder, fraction=0.25, max_size=3)
  assert table_configs.table_configs(config)[1].max_size == 3


def test_a_server_by_hand_has_both_tables(folder):
  config = _config(path=folder, fraction=0.25)
  first, second = tables.tables_from_config(config)
  assert (first['name'], first['max_size']) == ('unrolls', 50)
  assert (second['name'], second['max_size']) == ('demonstrations', 7)
  assert second['min_size_to_sample'] == 1


@pytest.mark.parametrize(
  'section,message',
  [
    ({'path': 'x'}, r'fraction=0\.0: give a number above 0 and below 1'),
    ({'path': 'x', 'fraction': 1.0}, r'fraction=1\.0: give a number'),
    ({'fraction': 0.5}, r'fraction=0\.5: there are none; give .*\.path'),
    (
      {'path': 'x', 'fraction': 0.5, 'sampler': 'fifo'},
      r'a fifo queue cannot be mixed',
    ),
    ({'path': 'x', 'fraction': 0.5}, 'path=x: no demonstrations are there'),
  ],
)
def test_refusals_name_the_flag(section, message):
  with pytest.raises(ValueError, match=message):
    config = _config(section.pop('sampler', 'prioritized'), **section)
    if config.replay.sampler == 'fifo':
      config.replay.max_times_sampled = 1
    table_configs.table_configs(config)


def test_a_server_that_others_fill_needs_a_size():
  config = _config(fraction=0.5)
  config.replay.address = 'localhost:1'
  with pytest.raises(ValueError, match=r'demonstrations\.max_size: give it'):
    table_configs.table_configs(config)
  config.demonstrations.max_size = 8
  assert table_configs.table_configs(config)[1].max_size == 8
