"""Protocol buffers by hand, for messages that carry arrays.

Protobuf copies a field of bytes at every step; here it is copied once to make a
message, and never to parse one. Results can be concatenated with messages of
the generated code, as the order of fields is free.

Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Iterator, Sequence

from seedrl_jax.replay.reverb.transport import Buffer

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
  """Returns a number that is not negative as a varint."""
  out = bytearray()
  while value > 0x7F:
    out.append(value & 0x7F | 0x80)
    value >>= 7
  out.append(value)
  return bytes(out)


def field(number: int, parts: Sequence[Buffer]) -> list[Buffer]:
  """Returns the parts of a field of bytes, or of a message."""
  size = sum(len(part) for part in parts)
  return [varint(number << 3 | _BYTES) + varint(size), *parts]


def fields(message: memoryview) -> Iterator[tuple[int, int, memoryview]]:
  """Yields (number, value, content) of each field, without copying.

  An integer of variable length has a value, any other field has content.

  Raises:
    ValueError: if the message is damaged.
  """
  position, end = 0, len(message)
  nothing = message[:0]
  try:
    while position < end:
      key, position = _read_varint(message, position)
      kind = key & 7
      if kind == _VARINT:
        value, position = _read_varint(message, position)
        yield key >> 3, value, nothing
        continue
      if kind == _BYTES:
        size, position = _read_varint(message, position)
      elif kind in (_FIXED64, _FIXED32):
        size = 8 if kind == _FIXED64 else 4
      else:
        raise ValueError(f'A message has a field of kind {kind}.')
      start, position = position, position + size
      if position > end:
        raise IndexError
      yield key >> 3, 0, message[start:position]
  except IndexError:
    raise ValueError('A message was cut off.') from None


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
  """Returns the number at `position` and the position after it."""
  byte = message[position]
  # One byte is enough for nearly all numbers.
  if byte < 0x80:
    return byte, position + 1
  value, shift = byte & 0x7F, 7
  while True:
    position += 1
    byte = message[position]
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, position + 1
    shift += 7
