"""The replay's checkpoints and their archives: complete or absent."""

import json
import os
import pathlib
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import checkpoints as checkpoints_lib
from seedrl_jax.replay.embedded import store as embedded

_NUMBER = types.ArraySpec((), np.dtype(np.int64))
_ROW = types.ArraySpec((3,), np.dtype(np.uint8))
_EMPTY = types.ArraySpec((2,), np.dtype(np.float32))


def _write(path, value=1):
  with checkpoints_lib.create_archive(os.fspath(path)) as writer:
    writer.meta['value'] = value
    writer.add_array('a/numbers', np.arange(5) * value)
    pieces = (np.full((2, 3), i, np.uint8) for i in range(4))
    writer.add_rows('rows', 8, _ROW, pieces)
    writer.add_array('empty', np.empty((0, 2), np.float32))


def test_what_was_written_is_read(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoints_lib, '_PIECE', 9)
  path = tmp_path / 'x'
  _write(path)
  with checkpoints_lib.load_archive(os.fspath(path)) as reader:
    assert reader.meta == {'value': 1}
    np.testing.assert_array_equal(
      reader.array('a/numbers', _NUMBER), np.arange(5)
    )
    pieces = list(reader.rows('rows', _ROW))
    assert [len(piece) for piece in pieces] == [3, 3, 2]
    rows = np.concatenate(pieces)
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    assert reader.array('empty', _EMPTY).shape == (0, 2)
    assert list(reader.rows('empty', _EMPTY)) == []
    (end,) = reader.rows('rows', _ROW, skip=6)
    np.testing.assert_array_equal(end, rows[6:])
  with np.load(path) as loaded:
    np.testing.assert_array_equal(loaded['a/numbers'], np.arange(5))
  assert os.listdir(tmp_path) == ['x']


def test_a_failure_keeps_what_was_there(tmp_path):
  path = os.fspath(tmp_path / 'x')
  _write(path, value=7)
  with (
    pytest.raises(KeyboardInterrupt),
    checkpoints_lib.create_archive(path) as writer,
  ):
    writer.add_array('a', np.arange(3))
    raise KeyboardInterrupt
  assert os.listdir(tmp_path) == ['x']
  with checkpoints_lib.load_archive(path) as reader:
    assert reader.meta['value'] == 7


def test_what_the_body_raises_is_no_damage(tmp_path):
  _write(tmp_path / 'x')
  with (
    pytest.raises(ValueError, match='ours'),
    checkpoints_lib.load_archive(os.fspath(tmp_path / 'x')),
  ):
    raise ValueError('ours')


def test_lack_of_memory_is_no_damage(tmp_path):
  with (
    pytest.raises(MemoryError),
    checkpoints_lib.refusing_damage(os.fspath(tmp_path)),
  ):
    raise MemoryError


class _Saved:
  def __init__(self, toy, folder: pathlib.Path):
    self.messages: list[str] = []
    self.folder = folder
    self.store = embedded.EmbeddedStore([toy.queue(8)], toy.spec(), 2)
    self.checkpoints = checkpoints_lib.ReplayCheckpoints(
      self.store, folder, self.messages.append
    )


@pytest.fixture(name='saved')
def saved_fixture(toy, tmp_path) -> Iterator[_Saved]:
  new_saved = _Saved(toy, tmp_path / 'replay')
  yield new_saved
  new_saved.store.close()


def test_another_run_gets_back_what_was_saved(saved, toy):
  toy.insert(saved.store, 't', [1, 2])
  name = saved.checkpoints.save(7)
  toy.insert(saved.store, 't', [3, 4])
  other = _Saved(toy, saved.folder)
  other.checkpoints.restore(name)
  assert other.store.info()['t'].size == 2
  assert toy.numbers(other.store.table('t').sampler(2).sample()) == [1, 2]
  assert saved.messages == []


def test_no_changed_byte_is_read(saved, toy):
  toy.insert(saved.store, 't', [1, 2])
  path = saved.folder / saved.checkpoints.save(7)
  sound = path.read_bytes()
  other = _Saved(toy, saved.folder)
  damaged = [sound[: len(sound) * i // 9] for i in range(9)] + [sound + b'0']
  for i in range(len(sound)):
    changed = bytearray(sound)
    changed[i] ^= 1 << i % 8
    damaged.append(bytes(changed))
  # As written by an earlier release.
  damaged.append(sound[: -checkpoints_lib._DIGEST_BYTES])
  for data in damaged:
    path.write_bytes(data)
    with pytest.raises(replay.CheckpointError, match='an earlier release, wh'):
      other.checkpoints.restore('7')
    assert other.store.info()['t'].size == 0
  path.write_bytes(sound)
  other.checkpoints.restore('7')
  assert other.store.info()['t'].size == 2


@pytest.mark.parametrize(
  'change',
  [
    *(b'[]', b'', b'{}', b'{"version": 3}', b'[' * 100_000),
    {'unroll': {'stride': 2, 'leaves': 5}},
    {'tables': None},
    {'t': 5},
    {'t/0': np.zeros((2, 7))},
    {'t/1': np.array([None])},
    {'t/0': np.zeros((0, 7), np.int32)},
  ],
)
def test_a_foreign_archive_is_refused(saved, toy, monkeypatch, change):
  """Its digest is right, but not its contents."""
  changes = {} if isinstance(change, bytes) else change

  def dumps(meta):
    if isinstance(change, bytes):
      return change
    return json.dumps({name: changes.get(name, meta[name]) for name in meta})

  def array(writer, name, value):
    with writer._file.open(f'{name}.npy', 'w') as member:
      np.lib.format.write_array(member, changes.get(name, value), (2, 0))

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints_lib, 'json', mock.Mock(dumps=dumps))
    patch.setattr(checkpoints_lib.ArchiveWriter, 'add_array', array)
    toy.insert(saved.store, 't', [1, 2])
    saved.checkpoints.save(7)
  with pytest.raises(replay.CheckpointError):
    saved.checkpoints.restore('7')
  assert saved.messages == []


def test_prune_deletes_those_without_a_learner_and_nothing_else(saved, toy):
  saved.checkpoints.prune([])
  names = [saved.checkpoints.save(step) for step in (1, 2, 3)]
  # A folder, as a Reverb store makes.
  (saved.folder / '4').mkdir()
  (saved.folder / '4' / 'tables').touch()
  (saved.folder / 'reverb').mkdir()
  saved.checkpoints.prune([1, 3])
  left = {path.name for path in saved.folder.iterdir()}
  assert left == {'1', '3', 'reverb'}
  # No number as `str` writes it.
  for name in ('0999', '\u0662'):
    (saved.folder / name).touch()
  saved.checkpoints.prune([1, 3])
  saved.checkpoints.restore(names[2])
  with pytest.raises(replay.CheckpointError):
    saved.checkpoints.restore(names[1])


def test_what_a_killed_save_left_is_removed(saved, toy):
  unfinished = []

  def look() -> None:
    unfinished.extend(path.name for path in saved.folder.iterdir())

  saved.checkpoints.save(7, look)
  # Names of unfinished checkpoints of the several stores.
  (saved.folder / unfinished[0]).write_bytes(b'gigabytes')
  for name in ('.8.abcdefgh', '9', 'mine.partial'):
    (saved.folder / name).mkdir()
    (saved.folder / name / 'file').touch()
  _Saved(toy, saved.folder)
  left = {path.name for path in saved.folder.iterdir()}
  assert left == {'7', '9', 'mine.partial'}


@pytest.mark.parametrize('error', [OSError, RuntimeError])
def test_what_cannot_be_saved_costs_a_sentence(saved, monkeypatch, error):
  def fail(path: str, on_snapshot: object) -> None:
    raise error(f'No room in {path}.')

  monkeypatch.setattr(saved.store, 'checkpoint', fail)
  assert saved.checkpoints.save(5) == ''
  (sentence,) = saved.messages
  assert sentence.startswith('Checkpoint 5 has no replay: No room in ')
