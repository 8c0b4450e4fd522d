"""Messages between an actor and the learner: a fixed header, then arrays.

The handshake settles the arrays' specs; then each message is a 24-byte header
and the arrays back to back. All numbers are little endian. Unpacking any bytes
gives arrays of the agreed shapes or raises `WireError`.
"""

import enum
import json
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, step_checks
from seedrl_jax.runtime import file_io, nest

VERSION = 6
SERVICE, METHOD = 'seedrl_jax.Actors', 'Serve'
# Size limit of a JSON message's body.
MAX_JSON_BYTES = 1 << 16

# The largest absolute reward and observation that a learner accepts.
LARGEST = step_checks.LARGEST_REWARD

_MAGIC = b'SRLA'
# Magic, version, kind, rows, episodes and sequence.
_HEADER = struct.Struct('<4sHHIIQ')
HEADER_BYTES = _HEADER.size

_OUTPUT_COLUMNS = (
  types.ArraySpec((), np.dtype('<f4')),  # reward
  types.ArraySpec((), np.dtype('<f4')),  # discount
  types.ArraySpec((), np.dtype('u1')),  # step_type
)
EPISODE_COLUMNS = (
  types.ArraySpec((), np.dtype('<i4')),  # env_id, within the group
  types.ArraySpec((), np.dtype('<f8')),  # episode_return
  types.ArraySpec((), np.dtype('<u4')),  # length
  types.ArraySpec((), np.dtype('<u4')),  # frames
  types.ArraySpec((), np.dtype('?')),  # terminated
  types.ArraySpec((), np.dtype('<i4')),  # task
)


class WireError(ValueError):
  """A message is malformed; the text says how."""


class MessageKind(enum.IntEnum):
  """The kinds of messages; those without arrays hold JSON."""

  HELLO = 1  # actor: how many environments it has
  WELCOME = 2  # learner: which environments to make
  STEPS = 3  # actor: a step of each environment of a group
  ACTIONS = 4  # learner: their actions
  END = 5  # learner: the training has ended
  REPORT = 6  # actor that acts itself: its progress since the last report
  PARAMETERS = 7  # learner: newer parameters, or that there are none


class Message(NamedTuple):
  """A message whose header is right.

  `sequence` is a message's number in the stream, from 0, but the version of
  PARAMETERS.
  """

  kind: MessageKind
  rows: int  # number of environments
  episodes: int  # number of finished episodes
  sequence: int
  body: memoryview  # the bytes after the header


def parse(message: bytes) -> Message:
  """Splits a message; raises `WireError` if it is foreign."""
  if len(message) < _HEADER.size:
    raise WireError(f'A message of {len(message)} bytes has no whole header.')
  header = _HEADER.unpack_from(message)
  magic, version, number, rows, episodes, sequence = header
  if magic != _MAGIC:
    raise WireError('The message is not of the protocol of actors.')
  if version != VERSION:
    raise WireError(
      f'The message is of version {version} of the protocol of actors, and '
      f'this side speaks version {VERSION}: install the same release of '
      'seedrl-jax on both sides.'
    )
  try:
    kind = MessageKind(number)
  except ValueError:
    raise WireError(f'There is no message kind {number}.') from None
  body = memoryview(message)[_HEADER.size :]
  return Message(kind, rows, episodes, sequence, body)


def expect(message: Message, kind: MessageKind) -> None:
  """Raises `WireError` if a message is of another kind."""
  if message.kind != kind:
    raise WireError(f'{message.kind.name} came instead of {kind.name}.')


def pack_json(kind: MessageKind, value: dict[str, Any]) -> bytes:
  """Packs a JSON object; raises `ValueError` if it does not fit."""
  try:
    body = json.dumps(value, allow_nan=False).encode()
  except (TypeError, ValueError) as e:
    raise ValueError(f'{kind.name} cannot be sent as JSON: {e}') from e
  if len(body) > MAX_JSON_BYTES:
    raise ValueError(f'{kind.name} has {len(body)} bytes of JSON: too many.')
  return pack(kind, [memoryview(body)])


def unpack_json(message: Message) -> dict[str, Any]:
  """Returns a message's JSON object; raises `WireError` if it has none."""
  if len(message.body) > MAX_JSON_BYTES:
    raise WireError(f'{message.kind.name} is too large.')
  try:
    return file_io.json_object(bytes(message.body))
  except ValueError:
    raise WireError(f'{message.kind.name} holds no JSON object.') from None


class StreamCodec:
  """Packs and unpacks the steps and actions of one kind of environment."""

  def __init__(self, spec: types.StreamSpec):
    self._steps = (*nest.flatten(spec.observation), *_OUTPUT_COLUMNS)
    self._action = types.ArraySpec(spec.action.shape, spec.action.dtype)

  def num_bytes(self, rows: int) -> int:
    """Returns the size of the largest STEPS message with `rows` rows."""
    columns = (*self._steps, *EPISODE_COLUMNS)
    return HEADER_BYTES + sum(_num_bytes(spec, rows) for spec in columns)

  def pack_steps(
    self,
    output: types.EnvOutput,
    episodes: base.EndedEpisodes,
    sequence: int,
  ) -> bytes:
    """Packs a step of each environment and the episodes that ended."""
    leaves = [*nest.flatten(output.observation), *output[1:-1]]
    arrays = buffers([*leaves, *episodes], (*self._steps, *EPISODE_COLUMNS))
    rows, ended = len(output.env_id), len(episodes.env_id)
    return pack(MessageKind.STEPS, arrays, rows, ended, sequence)

  def unpack_steps(
    self, message: Message
  ) -> tuple[list[np.ndarray], base.EndedEpisodes]:
    """Unpacks a STEPS message; raises `WireError` if it is invalid.

    Returns, as views of it, the leaves of the observation, reward, discount and
    step type, `[n, ...]` each, and the episodes that ended.
    """
    expect(message, MessageKind.STEPS)
    episodes = EPISODE_COLUMNS, message.episodes
    leaves, ended = take(message.body, (self._steps, message.rows), episodes)
    return leaves, base.EndedEpisodes(*ended)

  def pack_actions(self, action: np.ndarray, sequence: int) -> bytes:
    """Packs the actions `[n, ...]` for the STEPS message `sequence`."""
    arrays = buffers([action], [self._action])
    return pack(MessageKind.ACTIONS, arrays, len(action), 0, sequence)

  def unpack_actions(
    self, message: Message, rows: int, sequence: int
  ) -> np.ndarray:
    """Returns the actions `[rows, ...]`, or raises `WireError`."""
    expect(message, MessageKind.ACTIONS)
    if (message.rows, message.sequence) != (rows, sequence):
      raise WireError(
        f'Actions for {message.rows} environments of message '
        f'{message.sequence} came instead of those for {rows} of message '
        f'{sequence}.'
      )
    ((action,),) = take(message.body, ([self._action], rows))
    return action


def buffers(
  arrays: Iterable[Any], columns: Iterable[types.ArraySpec]
) -> list[memoryview]:
  """Returns the bytes of arrays, in the dtypes of `columns`."""
  return [
    np.ascontiguousarray(x, spec.dtype).data
    for x, spec in zip(arrays, columns, strict=True)
  ]


def pack(
  kind: MessageKind,
  parts: Sequence[memoryview],
  rows: int = 0,
  episodes: int = 0,
  sequence: int = 0,
) -> bytes:
  """Packs a message; see `Message` for the last three arguments."""
  header = _HEADER.pack(_MAGIC, VERSION, kind, rows, episodes, sequence)
  return b''.join([header, *parts])


def _num_bytes(spec: types.ArraySpec, rows: int) -> int:
  # Python's integers cannot overflow.
  return rows * math.prod(spec.shape) * spec.dtype.itemsize


def take(
  body: memoryview, *groups: tuple[Iterable[types.ArraySpec], int]
) -> list[list[np.ndarray]]:
  """Returns for each group its arrays, `[rows, ...]`, as views of `body`.

  A group is specs and a number of rows. Raises `WireError` if sizes differ.
  """
  taken = []
  for columns, rows in groups:
    arrays = []
    for spec in columns:
      size = _num_bytes(spec, rows)
      if len(body) < size:
        raise WireError(f'The message has fewer bytes than {rows} rows take.')
      # Unlike `np.ndarray`, `frombuffer` needs no alignment.
      flat = np.frombuffer(body[:size], spec.dtype)
      arrays.append(flat.reshape(rows, *spec.shape))
      body = body[size:]
    taken.append(arrays)
  if body:
    raise WireError(f'The message has {len(body)} bytes too many.')
  return taken
