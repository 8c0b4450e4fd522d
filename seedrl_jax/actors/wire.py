"""Messages between an actor and the learner: a fixed header, then arrays.

`actor` and `server` are the callers, `reports` and `parameters` have messages
of their own. What the arrays are is agreed once, in the handshake
(`handshake`); after that a message is a header of 32 bytes and the arrays back
to back, in the order of `Layout`. All numbers are little endian. Whatever a
message holds, taking it apart gives arrays of the agreed shapes or a
`WireError`.
"""

import enum
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import statistics

VERSION = 2
SERVICE, METHOD = 'seedrl_jax.Actors', 'Serve'
# Of a message without arrays, in bytes.
MAX_JSON_BYTES = 1 << 16

# The most that rewards and numbers in observations may be; beyond it a stream
# ends. Losses square values that follow from rewards, and gradient norms their
# products with observations: all that stays within float32 with both this
# large, or ten times as large, and not with both a thousand times as large
# (tests/learner/test_update.py). Scores of Atari games are within it.
LARGEST = 1e6

_MAGIC = b'SRLA'
# Magic, version, kind, rows, episodes, sequence, body's bytes and its CRC-32.
_HEADER = struct.Struct('<4sHHIIQII')
HEADER_BYTES = _HEADER.size

_OUTPUT_COLUMNS = (
  types.ArraySpec((), np.dtype('<f4')),  # reward
  types.ArraySpec((), np.dtype('<f4')),  # discount
  types.ArraySpec((), np.dtype('u1')),  # step_type
  types.ArraySpec((), np.dtype('<i4')),  # env_id
)
EPISODE_COLUMNS = (
  types.ArraySpec((), np.dtype('<i4')),  # env_id
  types.ArraySpec((), np.dtype('<f8')),  # episode_return
  types.ArraySpec((), np.dtype('<i8')),  # length
  types.ArraySpec((), np.dtype('<i8')),  # frames
  types.ArraySpec((), np.dtype('?')),  # terminated
)
_ACTION = types.ArraySpec((), np.dtype('<i4'))


class WireError(ValueError):
  """A message is not what it should be; says what is wrong with it."""


class Kind(enum.IntEnum):
  """What a message is; those without arrays hold JSON."""

  HELLO = 1  # actor: how many environments it has
  WELCOME = 2  # learner: which environments to make, and their ids
  STEPS = 3  # actor: a step of each of some environments
  ACTIONS = 4  # learner: their actions
  REFUSAL = 5  # actor: why it cannot serve this learner
  END = 6  # learner: the training has ended
  REPORT = 7  # actor that acts itself: what it did, and with which parameters
  PARAMETERS = 8  # learner: newer ones, or that there are none


class Message(NamedTuple):
  """A message whose header was found right.

  Attributes:
    kind: what it is.
    rows: environments that it is about.
    episodes: finished episodes that it tells of.
    sequence: counts the messages of a stream that hold steps, or reports, from
      0; of parameters the version.
    body: what follows the header.
  """

  kind: Kind
  rows: int
  episodes: int
  sequence: int
  body: memoryview


class StepRows(NamedTuple):
  """What a message of steps holds; the arrays are views of it.

  Attributes:
    output: leaves of the observation, then reward, discount, step type and id,
      `[n, ...]` each.
    episodes: episodes that ended since the last message.
  """

  output: list[np.ndarray]
  episodes: statistics.EndedEpisodes


def parse(message: bytes) -> Message:
  """Checks a message's header.

  Raises:
    WireError: where it is no message of this protocol, of another version of
      it, cut off or damaged.
  """
  if len(message) < _HEADER.size:
    raise WireError(f'A message of {len(message)} bytes has no whole header.')
  header = _HEADER.unpack_from(message)
  magic, version, number, rows, episodes, sequence, size, checksum = header
  if magic != _MAGIC:
    raise WireError('The message is not of the protocol of actors.')
  if version != VERSION:
    raise WireError(
      f'The message is of version {version} of the protocol of actors, and '
      f'this side speaks version {VERSION}: install the same release of '
      'seedrl-jax on both sides.'
    )
  body = memoryview(message)[_HEADER.size :]
  if len(body) != size:
    raise WireError(f'The body has {len(body)} bytes; its header says {size}.')
  if zlib.crc32(body) != checksum:
    raise WireError('The message is damaged: its checksum is wrong.')
  try:
    kind = Kind(number)
  except ValueError:
    raise WireError(f'There is no kind {number} of messages.') from None
  return Message(kind, rows, episodes, sequence, body)


def expect(message: Message, kind: Kind) -> None:
  """Raises WireError where a message is of another kind."""
  if message.kind != kind:
    raise WireError(f'{message.kind.name} came where {kind.name} is due.')


def pack_json(kind: Kind, value: dict[str, Any]) -> bytes:
  """Makes a message of a JSON object.

  Raises:
    ValueError: where JSON cannot hold it, or it is too large.
  """
  try:
    body = json.dumps(value, allow_nan=False).encode()
  except (TypeError, ValueError) as e:
    raise ValueError(f'{kind.name} cannot be sent as JSON: {e}') from e
  if len(body) > MAX_JSON_BYTES:
    raise ValueError(f'{kind.name} has {len(body)} bytes of JSON: too many.')
  return pack(kind, [memoryview(body)])


def unpack_json(message: Message) -> dict[str, Any]:
  """Returns the JSON object of a message.

  Raises:
    WireError: where there is none.
  """
  if len(message.body) > MAX_JSON_BYTES:
    raise WireError(f'{message.kind.name} is too large.')
  try:
    value = json.loads(bytes(message.body))
  except (ValueError, RecursionError):
    raise WireError(f'{message.kind.name} holds no JSON.') from None
  if not isinstance(value, dict):
    raise WireError(f'{message.kind.name} holds no JSON object.')
  return value


def flatten(nest: types.Nest) -> list[Any]:
  """Returns the leaves of dicts, by sorted keys as `jax.tree` has them."""
  if isinstance(nest, dict):
    return [leaf for key in sorted(nest) for leaf in flatten(nest[key])]
  return [nest]


def unflatten(nest: types.Nest, leaves: Sequence[Any]) -> types.Nest:
  """Returns a nest like `nest` of other leaves, in the order of `flatten`."""
  remaining = iter(leaves)

  def rebuild(node: types.Nest) -> types.Nest:
    if isinstance(node, dict):
      return {key: rebuild(node[key]) for key in sorted(node)}
    return next(remaining)

  return rebuild(nest)


class Layout:
  """Puts steps and actions into messages, and takes them out again."""

  def __init__(self, observation: types.Nest):
    """Fixes the order of the arrays.

    Args:
      observation: nest of `types.ArraySpec`, of one environment.
    """
    self._columns = (*flatten(observation), *_OUTPUT_COLUMNS)

  def num_bytes(self, rows: int) -> int:
    """Returns the size of the largest message about `rows` environments."""
    columns = (*self._columns, *EPISODE_COLUMNS)
    return HEADER_BYTES + num_bytes(columns, rows)

  def pack_steps(
    self,
    output: types.EnvOutput,
    episodes: statistics.EndedEpisodes,
    sequence: int,
  ) -> bytes:
    """Makes a message of `[n]` steps and the episodes that ended."""
    leaves = [*flatten(output.observation), *output[1:]]
    arrays = buffers([*leaves, *episodes], (*self._columns, *EPISODE_COLUMNS))
    rows, ended = len(output.env_id), len(episodes.env_id)
    return pack(Kind.STEPS, arrays, rows, ended, sequence)

  def unpack_steps(self, message: Message) -> StepRows:
    """Takes a message of steps apart.

    Raises:
      WireError: where it is another or its arrays are not those agreed on.
    """
    expect(message, Kind.STEPS)
    output, ended = take(
      message.body,
      (self._columns, message.rows),
      (EPISODE_COLUMNS, message.episodes),
    )
    return StepRows(output, statistics.EndedEpisodes(*ended))


def pack_actions(action: np.ndarray, sequence: int) -> bytes:
  """Makes a message of the actions `[n]` for a message of `n` steps."""
  arrays = buffers([action], (_ACTION,))
  return pack(Kind.ACTIONS, arrays, len(action), 0, sequence)


def unpack_actions(message: Message, rows: int, sequence: int) -> np.ndarray:
  """Returns the actions, int32 `[rows]`, for the message `sequence`.

  Raises:
    WireError: where these are other actions or none.
  """
  expect(message, Kind.ACTIONS)
  if (message.rows, message.sequence) != (rows, sequence):
    raise WireError(
      f'Actions for {message.rows} environments of message '
      f'{message.sequence} came where {rows} of message {sequence} wait.'
    )
  ((action,),) = take(message.body, ((_ACTION,), rows))
  return action


def buffers(
  arrays: Iterable[Any], columns: Iterable[types.ArraySpec]
) -> list[memoryview]:
  """Returns arrays as they travel, as `columns` has their types."""
  return [
    np.ascontiguousarray(x, spec.dtype).data
    for x, spec in zip(arrays, columns, strict=True)
  ]


def pack(
  kind: Kind,
  parts: Sequence[memoryview],
  rows: int = 0,
  episodes: int = 0,
  sequence: int = 0,
) -> bytes:
  """Makes a message of the parts; the other arguments are `Message`'s."""
  checksum = size = 0
  for part in parts:
    checksum = zlib.crc32(part, checksum)
    size += part.nbytes
  header = _HEADER.pack(
    _MAGIC, VERSION, kind, rows, episodes, sequence, size, checksum
  )
  return b''.join([header, *parts])


def num_bytes(columns: Iterable[types.ArraySpec], rows: int) -> int:
  """Returns what the arrays `[rows, ...]` of a message take."""
  return sum(_num_bytes(spec, rows) for spec in columns)


def _num_bytes(spec: types.ArraySpec, rows: int) -> int:
  # In Python's integers, which no message can make overflow.
  count = rows
  for length in spec.shape:
    count *= length
  return count * spec.dtype.itemsize


def take(
  body: memoryview, *groups: tuple[Iterable[types.ArraySpec], int]
) -> list[list[np.ndarray]]:
  """Takes a message's body apart.

  Args:
    body: arrays back to back.
    groups: each the arrays' specs, and their `rows`.

  Returns:
    For each group its arrays, `[rows, ...]`; views of `body`.

  Raises:
    WireError: where the body has fewer bytes or more.
  """
  taken = []
  for columns, rows in groups:
    arrays = []
    for spec in columns:
      size = _num_bytes(spec, rows)
      if len(body) < size:
        raise WireError(f'The message has fewer bytes than {rows} rows take.')
      # Unlike the constructor of arrays, this wants no alignment.
      flat = np.frombuffer(body[:size], spec.dtype)
      arrays.append(flat.reshape(rows, *spec.shape))
      body = body[size:]
    taken.append(arrays)
  if body:
    raise WireError(f'The message has {len(body)} bytes too many.')
  return taken
