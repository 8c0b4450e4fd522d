"""The checkpoint file: complete or absent; damage is noticed."""

import os

import numpy as np
import pytest

from seedrl_jax.replay import archive, base


def _write(path, value=1):
  with archive.create(os.fspath(path)) as writer:
    writer.add_meta('value', value)
    writer.add_array('a/numbers', np.arange(5) * value)
    pieces = (np.full((2, 3), i, np.uint8) for i in range(4))
    writer.add_rows('rows', 8, (3,), np.dtype(np.uint8), pieces)
    writer.add_array('empty', np.empty((0, 2), np.float32))


def test_what_was_written_is_read(tmp_path):
  _write(tmp_path / 'x')
  with archive.load(os.fspath(tmp_path / 'x')) as reader:
    assert reader.meta == {'value': 1}
    np.testing.assert_array_equal(reader.array('a/numbers'), np.arange(5))
    rows = np.concatenate(list(reader.rows('rows')))
    np.testing.assert_array_equal(rows[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    assert reader.array('empty').shape == (0, 2)
    assert list(reader.rows('empty')) == []
  assert os.listdir(tmp_path) == ['x']


def test_rows_come_in_pieces(tmp_path, monkeypatch):
  _write(tmp_path / 'x')
  monkeypatch.setattr(archive, '_PIECE', 9)
  with archive.load(os.fspath(tmp_path / 'x')) as reader:
    assert [len(piece) for piece in reader.rows('rows')] == [3, 3, 2]


def test_numpy_opens_it(tmp_path):
  _write(tmp_path / 'x')
  with np.load(tmp_path / 'x') as loaded:
    np.testing.assert_array_equal(loaded['a/numbers'], np.arange(5))


def test_a_failure_keeps_what_was_there(tmp_path):
  path = os.fspath(tmp_path / 'x')
  _write(path, value=7)
  with pytest.raises(KeyboardInterrupt), archive.create(path) as writer:
    writer.add_array('a', np.arange(3))
    raise KeyboardInterrupt
  assert os.listdir(tmp_path) == ['x']
  with archive.load(path) as reader:
    assert reader.meta['value'] == 7


def _read_all(path):
  with archive.load(os.fspath(path)) as reader:
    reader.array('a/numbers')
    list(reader.rows('rows'))


@pytest.mark.parametrize('share', [0.0, 0.3, 0.9, 0.999])
def test_a_file_cut_short_is_damaged(tmp_path, share):
  path = tmp_path / 'x'
  _write(path)
  data = path.read_bytes()
  path.write_bytes(data[: int(len(data) * share)])
  with pytest.raises(base.CheckpointError, match='is damaged'):
    _read_all(path)


def test_a_changed_byte_is_damage(tmp_path):
  path = tmp_path / 'x'
  _write(path)
  data = bytearray(path.read_bytes())
  data[data.index(b'\x03\x00\x00\x00\x00\x00\x00\x00\x04') + 1] ^= 1
  path.write_bytes(data)
  with pytest.raises(base.CheckpointError, match='is damaged'):
    _read_all(path)
