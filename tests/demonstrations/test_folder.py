"""Tests of folders of demonstrations and the tables that they fill."""

import json
import os
import pathlib

import numpy as np
import pytest

from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks, table_configs

_TABLE = folder_lib.TABLE


def _manifest(layout: blocks.UnrollLayout, sequences: int):
  return folder_lib.Manifest(
    env_id='Toy-v0',
    sequences=sequences,
    episodes=3,
    mean_return=1.5,
    made_by='a test',
    unroll=layout.signature(),
  )


@pytest.fixture(name='folder')
def folder_fixture(toy, tmp_path) -> str:
  """A folder of five toy unrolls, of priorities 1 to 5, in two pieces."""
  layout = blocks.UnrollLayout(toy.spec())
  path = os.fspath(tmp_path / 'new' / 'demos')
  with folder_lib.create(path, layout) as writer:
    block = layout.new_block(4)
    toy.fill(block, [10, 11, 12, 13])
    writer.insert(block, np.arange(1.0, 5.0))
    block = layout.new_block(1)
    toy.fill(block, [14])
    writer.insert(block, np.array([5.0]))
    writer.manifest = _manifest(layout, writer.sequences)
  return path


def _rules(**rules) -> list[table_configs.TableConfig]:
  rules = {'max_size': 9, 'samples_per_insert': 0.0, **rules}
  return [
    table_configs.ReplayConfig(table_configs.TABLE, 'prioritized', 9),
    table_configs.ReplayConfig(_TABLE, 'prioritized', block_width=1, **rules),
  ]


def _contents(store: replay.TrajectoryStore, toy) -> dict[int, float]:
  """Returns the unrolls of the table and their priorities."""
  sample = store.table(_TABLE).sampler(200).sample()
  return dict(zip(toy.numbers(sample), sample.priorities, strict=True))


def test_all_sequences_come_with_their_priorities(make_store, toy, folder):
  store = make_store(*_rules(), width=4)
  assert folder_lib.fill(store, folder, 'Toy-v0') == 5
  assert store.info()[_TABLE].size == 5
  assert _contents(store, toy) == {10 + i: 1.0 + i for i in range(5)}
  assert store.info()[table_configs.TABLE].size == 0


def test_a_table_that_holds_some_is_left_alone(make_store, toy, folder):
  store = make_store(*_rules())
  toy.insert(store, _TABLE, [77])
  assert folder_lib.fill(store, folder, 'Toy-v0') == 0
  assert folder_lib.difference(store, folder).startswith(
    'The table of demonstrations holds 1 sequences, and '
    f'--config.demonstrations.path={folder} 5; '
  )
  assert folder_lib.insert_all(store, folder, 'Toy-v0') == 5
  assert store.info()[_TABLE].size == 6


@pytest.mark.parametrize(
  'values,env_id,difference',
  [
    ({'steps': 4}, 'Toy-v0', r'steps\.agent_output\.0 is .*\[3\]'),
    ({'overlap': 2}, 'Toy-v0', 'every 2 steps .* every 1 here'),
    ({}, 'Other-v1', 'played in Toy-v0, not in Other-v1'),
  ],
)
def test_a_folder_of_another_run_is_refused(
  make_store, folder, values, env_id, difference
):
  store = make_store(*_rules(), **values)
  with pytest.raises(
    ValueError, match=r'--config\.demonstrations\.path=.*' + difference
  ):
    folder_lib.fill(store, folder, env_id)
  assert store.info()[_TABLE].size == 0


def test_a_small_table_holds_the_newest(make_store, toy, folder):
  store = make_store(*_rules(max_size=2))
  folder_lib.fill(store, folder, 'Toy-v0')
  assert set(_contents(store, toy)) == {13, 14}
  assert folder_lib.difference(store, folder) == ''


def test_a_folder_appears_when_it_is_complete(toy, tmp_path):
  layout = blocks.UnrollLayout(toy.spec())
  path = os.fspath(tmp_path / 'demos')
  with (
    pytest.raises(OSError, match='full'),
    folder_lib.create(path, layout) as writer,
  ):
    writer.insert(layout.new_block(2))
    assert not os.path.exists(path)
    raise OSError('The disk is full.')
  assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(toy, folder):
  layout = blocks.UnrollLayout(toy.spec())
  with (
    pytest.raises(ValueError, match=r'--out=.*demos exists already'),
    folder_lib.create(folder, layout),
  ):
    pass
  assert folder_lib.read_manifest(folder).sequences == 5


def test_no_changed_byte_is_read(make_store, folder):
  store = make_store(*_rules())
  file = pathlib.Path(folder, 'sequences.zip')
  sound = file.read_bytes()
  for i in range(0, len(sound), 7):
    changed = bytearray(sound)
    changed[i] ^= 1 << i % 8
    file.write_bytes(changed)
    with pytest.raises(
      ValueError, match=r'sequences\.zip is missing or damaged'
    ):
      folder_lib.fill(store, folder, 'Toy-v0')
  assert store.info()[_TABLE].size == 0


def test_what_describes_no_unrolls_is_refused(make_store, folder):
  file = pathlib.Path(folder, 'manifest.json')
  for unroll in (5, {}, {'leaves': 5, 'stride': 1}, {'leaves': [[[]]]}):
    file.write_text(
      json.dumps(json.loads(file.read_text()) | {'unroll': unroll})
    )
    with pytest.raises(ValueError, match='does not say what its unrolls are'):
      folder_lib.fill(make_store(*_rules()), folder, 'Toy-v0')


@pytest.mark.parametrize(
  'text', ['{"version": 1', '{"colour": 1}', '[]', 'null', '[' * 10**5]
)
def test_a_damaged_manifest_is_one_sentence(folder, text):
  pathlib.Path(folder, 'manifest.json').write_text(text)
  with pytest.raises(ValueError, match=r'manifest\.json is damaged'):
    folder_lib.read_manifest(folder)


@pytest.mark.parametrize(
  'value,sentence',
  [
    ({'version': 9}, 'of version 9, and this program'),
    ({'sequences': '5'}, r'manifest\.json is damaged \(sequences=5\)'),
  ],
)
def test_a_manifest_with_another_value_is_refused(folder, value, sentence):
  file = pathlib.Path(folder, 'manifest.json')
  file.write_text(json.dumps(json.loads(file.read_text()) | value))
  with pytest.raises(ValueError, match=sentence):
    folder_lib.read_manifest(folder)


@pytest.mark.parametrize('is_missing', [True, False])
def test_damaged_sequences_are_one_sentence(make_store, folder, is_missing):
  file = pathlib.Path(folder, 'sequences.zip')
  content = file.read_bytes()
  if is_missing:
    file.unlink()
  else:
    file.write_bytes(content[:100])
  with pytest.raises(ValueError, match=r'sequences\.zip is missing or damaged'):
    folder_lib.fill(make_store(*_rules()), folder, 'Toy-v0')
