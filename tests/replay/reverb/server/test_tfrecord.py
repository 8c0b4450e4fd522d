"""Tests for seedrl_jax/replay/reverb/server/tfrecord.py."""

import struct
import zlib

import pytest

from seedrl_jax.replay.reverb.server import tfrecord


def test_records_come_back(tmp_path):
  records = [b'', b'one', bytes(3_000_000), b'last']
  tfrecord.write(tmp_path / 'x', records)
  assert list(tfrecord.read(tmp_path / 'x')) == records


def test_frame_and_masked_sum(tmp_path):
  tfrecord.write(tmp_path / 'x', [b'123456789'])
  raw = zlib.decompress((tmp_path / 'x').read_bytes())
  assert raw[:8] == struct.pack('<Q', 9)
  assert raw[12:21] == b'123456789'
  # The CRC's published check value, rotated by 15 bits and offset.
  crc = 0xE3069283
  masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
  assert raw[21:] == struct.pack('<I', masked)


@pytest.mark.parametrize('damage', ['cut', 'tail', 'flip', 'other', 'empty'])
def test_damage_is_noticed(tmp_path, damage):
  path = tmp_path / 'x.tfrecord'
  tfrecord.write(path, [b'a', bytes(range(256)) * 9])
  data = path.read_bytes()
  middle = len(data) // 2
  path.write_bytes(
    {
      'cut': data[:middle],
      'tail': data[:-1],
      'flip': data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
      'other': b'hello',
      'empty': b'',
    }[damage]
  )
  with pytest.raises(tfrecord.DamagedRecords, match=r'x\.tfrecord'):
    list(tfrecord.read(path))
