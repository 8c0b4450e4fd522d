"""TFRecord files as Reverb's checkpoints have them: in one zlib stream.

Called by `checkpoint_files.py`. A record is its length (uint64), a masked
CRC-32C of the length (uint32), its bytes, and a masked CRC-32C of these.
"""

import pathlib
import struct
import zlib
from collections.abc import Iterable, Iterator

_LENGTH = struct.Struct('<Q')
_SUM = struct.Struct('<I')
_HEADER = _LENGTH.size + _SUM.size
# Compressed bytes that are read at a time.
_PIECE = 1 << 20


class DamagedRecords(ValueError):
  """The file is cut short, or is not what it is taken for."""


def read(path: pathlib.Path) -> Iterator[bytes]:
  """Gives the records of a file one by one.

  Sums are not compared record by record: zlib's own, over all of the stream,
  is, when the last record has been given.

  Raises:
    DamagedRecords: where the file is cut short or altered.
    OSError: where it cannot be read.
  """
  buffer = bytearray()
  for piece in _inflate(path):
    buffer += piece
    yield from _take(buffer)
  if buffer:
    raise DamagedRecords(f'{path.name} is cut short')


def check(path: pathlib.Path) -> None:
  """Reads a file to its end; raises what `read` would."""
  for _ in _inflate(path):
    pass


def _inflate(path: pathlib.Path) -> Iterator[bytes]:
  stream = zlib.decompressobj()
  try:
    with path.open('rb') as file:
      while piece := file.read(_PIECE):
        yield stream.decompress(piece)
  except zlib.error as e:
    raise DamagedRecords(f'{path.name}: {e}') from e
  if not stream.eof:
    raise DamagedRecords(f'{path.name} is cut short')


def write(path: pathlib.Path, records: Iterable[bytes]) -> None:
  """Writes a file of `records`."""
  stream = zlib.compressobj()
  with path.open('wb') as file:
    for record in records:
      length = _LENGTH.pack(len(record))
      framed = length + _masked_sum(length) + record + _masked_sum(record)
      file.write(stream.compress(framed))
    file.write(stream.flush())


def _take(buffer: bytearray) -> Iterator[bytes]:
  """Takes whole records from the front of `buffer`."""
  start = 0
  while len(buffer) - start >= _HEADER:
    (length,) = _LENGTH.unpack_from(buffer, start)
    end = start + _HEADER + length + _SUM.size
    if end > len(buffer):
      break
    yield bytes(buffer[start + _HEADER : end - _SUM.size])
    start = end
  del buffer[:start]


def _make_table() -> list[int]:
  # The CRC of each byte, by Castagnoli's polynomial, bits reversed.
  table = []
  for value in range(256):
    for _ in range(8):
      value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    table.append(value)
  return table


_TABLE = _make_table()


def _masked_sum(data: bytes) -> bytes:
  # A few MB/s: enough for table records, and for items where some must go.
  crc = 0xFFFFFFFF
  for byte in data:
    crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
  crc ^= 0xFFFFFFFF
  # TensorFlow's mask, which lets a record hold a sum of its own.
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  return _SUM.pack(rotated + 0xA282EAD8 & 0xFFFFFFFF)
