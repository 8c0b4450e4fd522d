"""Messages between an actor and the learner: a fixed header, then arrays.

HELLO, of the actor, and WELCOME hold JSON; the actor's STEPS are answered with
ACTIONS, or its REPORTs with PARAMETERS (`local_messages`). So the order tells
what a message is. The stream ends without an error when the training has ended.

The handshake settles the arrays' specs; then each message is a 16-byte header,
the arrays and the episodes that ended, back to back. All numbers are little
endian. Unpacking any bytes gives arrays of the agreed shapes or raises
`WireError`.
"""

import json
import math
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import base, step_checks
from seedrl_jax.runtime import file_io, nest

VERSION = 7
SERVICE, METHOD = 'seedrl_jax.Actors', 'Serve'
# Size limit of a JSON message's body.
MAX_JSON_BYTES = 1 << 16

# The largest absolute reward and observation that a learner accepts.
LARGEST = step_checks.LARGEST_REWARD

_MAGIC = b'SRLA'
# Magic, version, rows and episodes, with two bytes of padding.
_HEADER = struct.Struct('<4sH2xII')
HEADER_BYTES = _HEADER.size

_OUTPUT_COLUMNS = (
  types.ArraySpec((), np.dtype('<f4')),  # reward
  types.ArraySpec((), np.dtype('<f4')),  # discount
  types.ArraySpec((), np.dtype('u1')),  # step_type
)
_EPISODE = types.ArraySpec((), base.EPISODE)
NO_EPISODES = np.zeros(0, base.EPISODE)


class WireError(ValueError):
  """A message is malformed; the text says how."""


class Message(NamedTuple):
  """A message whose header is right."""

  rows: int  # number of environments
  episodes: int  # number of finished episodes
  body: memoryview  # the bytes after the header


def parse(message: bytes) -> Message:
  """Splits a message; raises `WireError` if it is foreign."""
  if len(message) < _HEADER.size:
    raise WireError(f'A message of {len(message)} bytes has no whole header.')
  magic, version, rows, episodes = _HEADER.unpack_from(message)
  if magic != _MAGIC:
    raise WireError('The message is not of the protocol of actors.')
  if version != VERSION:
    raise WireError(
      f'The message is of version {version} of the protocol of actors, and '
      f'this side speaks version {VERSION}: install the same release of '
      'seedrl-jax on both sides.'
    )
  return Message(rows, episodes, memoryview(message)[_HEADER.size :])


def pack_json(value: dict[str, Any]) -> bytes:
  """Packs a JSON object; raises `ValueError` if it does not fit."""
  try:
    body = json.dumps(value, allow_nan=False).encode()
  except (TypeError, ValueError) as e:
    raise ValueError(
      f"The run's settings cannot be sent to actors as JSON: {e}"
    ) from e
  if len(body) > MAX_JSON_BYTES:
    raise ValueError(
      f"The run's settings have {len(body)} bytes of JSON, too many to send "
      'to actors.'
    )
  return _HEADER.pack(_MAGIC, VERSION, 0, 0) + body


def unpack_json(message: Message) -> dict[str, Any]:
  """Returns a message's JSON object; raises `WireError` if it has none."""
  if len(message.body) > MAX_JSON_BYTES:
    raise WireError('The JSON is too large.')
  try:
    return file_io.json_object(bytes(message.body))
  except ValueError:
    raise WireError('The message holds no JSON object.') from None


class StreamCodec:
  """Packs and unpacks the steps and actions of one kind of environment."""

  def __init__(self, spec: types.StreamSpec):
    self._steps = (*nest.flatten(spec.observation), *_OUTPUT_COLUMNS)
    self._action = types.ArraySpec(spec.action.shape, spec.action.dtype)

  def num_bytes(self, rows: int) -> int:
    """Returns the size of the largest STEPS message with `rows` rows."""
    columns = (*self._steps, _EPISODE)
    return HEADER_BYTES + sum(_num_bytes(spec, rows) for spec in columns)

  def pack_steps(self, output: types.EnvOutput, episodes: np.ndarray) -> bytes:
    """Packs a step of each environment and the episodes that ended."""
    leaves = [*nest.flatten(output.observation), *output[1:-1]]
    return pack(leaves, self._steps, len(output.env_id), episodes)

  def unpack_steps(
    self, message: Message
  ) -> tuple[list[np.ndarray], np.ndarray]:
    """Unpacks a STEPS message; raises `WireError` if it is invalid.

    Returns, as views of it, the leaves of the observation, reward, discount and
    step type, `[n, ...]` each, and the episodes that ended.
    """
    return unpack(message, self._steps)

  def pack_actions(self, action: np.ndarray) -> bytes:
    """Packs the actions `[n, ...]` for a STEPS message."""
    return pack([action], [self._action], len(action))

  def unpack_actions(self, message: Message, rows: int) -> np.ndarray:
    """Returns the actions `[rows, ...]`, or raises `WireError`."""
    if message.rows != rows:
      raise WireError(
        f'Actions for {message.rows} environments came instead of {rows}.'
      )
    (action,), _ = unpack(message, [self._action])
    return action


def pack(
  arrays: Iterable[Any],
  columns: Iterable[types.ArraySpec],
  rows: int,
  episodes: np.ndarray = NO_EPISODES,
) -> bytes:
  """Packs arrays `[rows, ...]`, in the dtypes of `columns`; see `Message`."""
  parts = [
    np.ascontiguousarray(x, spec.dtype).data
    for x, spec in zip(arrays, columns, strict=True)
  ]
  header = _HEADER.pack(_MAGIC, VERSION, rows, len(episodes))
  return b''.join([header, *parts, episodes.tobytes()])


def unpack(
  message: Message, columns: Iterable[types.ArraySpec]
) -> tuple[list[np.ndarray], np.ndarray]:
  """Returns arrays `[rows, ...]`, and episodes, as views of a message.

  Raises `WireError` if it has another size.
  """
  body = message.body
  arrays = []
  sizes = [(spec, message.rows) for spec in columns]
  for spec, rows in (*sizes, (_EPISODE, message.episodes)):
    size = _num_bytes(spec, rows)
    if len(body) < size:
      raise WireError(f'The message has fewer bytes than {rows} rows take.')
    # Unlike `np.ndarray`, `frombuffer` needs no alignment.
    flat = np.frombuffer(body[:size], spec.dtype)
    arrays.append(flat.reshape(rows, *spec.shape))
    body = body[size:]
  if body:
    raise WireError(f'The message has {len(body)} bytes too many.')
  *leaves, episodes = arrays
  return leaves, episodes


def _num_bytes(spec: types.ArraySpec, rows: int) -> int:
  # Python's integers cannot overflow.
  return rows * math.prod(spec.shape) * spec.dtype.itemsize
