"""Messages between workers and the shards of a parameter server.

Raw bytes: a header, then vectors of float32.
"""

import io
import struct
from typing import NamedTuple

import numpy as np

from seedrl_jax.workers import flat

SERVICE = 'seedrl.Shard'
# Takes a `Request`; returns a `Reply`.
EXCHANGE = 'Exchange'
# Takes nothing; returns a `State`.
STATE = 'State'
# Version, epoch, learning rate, and whether a gradient follows.
_REQUEST = struct.Struct('<qqfi')
# Version, epoch, processor time, whether the gradient was kept, and whether a
# target follows.
_REPLY = struct.Struct('<qqdii')


class Request(NamedTuple):
  """What a worker sends to a shard.

  Attributes:
    version, epoch: those of the worker's last `Reply`.
    gradient: float32 `[n]`, of the parameters of `version`; None: the worker
      only reads.
  """

  version: int
  epoch: int
  learning_rate: float = 0.0
  gradient: np.ndarray | None = None

  def pack(self) -> bytes:
    data = b'' if self.gradient is None else self.gradient.tobytes()
    has_gradient = self.gradient is not None
    return _REQUEST.pack(*self[:3], has_gradient) + data

  @classmethod
  def unpack(cls, data: bytes, size: int) -> 'Request':
    """Raises `ValueError` if it is not one for `size` parameters."""
    if len(data) < _REQUEST.size:
      raise ValueError('The request is cut short.')
    version, epoch, learning_rate, has_gradient = _REQUEST.unpack_from(data)
    rest = np.frombuffer(data, np.float32, offset=_REQUEST.size)
    if rest.size != size * has_gradient:
      raise ValueError(f'The shard has {size} parameters, not {rest.size}.')
    gradient = rest if has_gradient else None
    return cls(version, epoch, learning_rate, gradient)

  @classmethod
  def num_bytes(cls, size: int) -> int:
    """Returns the length of the longest request for `size` parameters."""
    return _REQUEST.size + 4 * size


class Reply(NamedTuple):
  """What a shard sends back.

  Attributes:
    version: updates that are in `params`.
    epoch: changes with each update of the target.
    cpu_seconds: of the shard's process so far.
    kept: whether a gradient was applied.
    params: float32 `[n]`.
    target: float32 `[n]`, or `[0]` if there is no target network; None if its
      epoch is that of the request.
  """

  version: int
  epoch: int
  cpu_seconds: float
  kept: bool
  params: np.ndarray
  target: np.ndarray | None

  def pack(self) -> bytes:
    data = b'' if self.target is None else self.target.tobytes()
    header = _REPLY.pack(*self[:4], self.target is not None)
    return b''.join([header, self.params.tobytes(), data])

  @classmethod
  def unpack(cls, data: bytes, size: int) -> 'Reply':
    version, epoch, cpu, kept, has_target = _REPLY.unpack_from(data)
    rest = np.frombuffer(data, np.float32, offset=_REPLY.size)
    target = rest[size:] if has_target else None
    return cls(version, epoch, cpu, bool(kept), rest[:size], target)


class State(NamedTuple):
  """All that a shard has to keep: slices of vectors, and their version."""

  vectors: flat.Vectors
  version: int

  def pack(self) -> bytes:
    file = io.BytesIO()
    params, target, optimizer = self.vectors
    np.savez(file, np.int64(self.version), params, target, *optimizer)
    return file.getvalue()

  @classmethod
  def unpack(cls, data: bytes) -> 'State':
    with np.load(io.BytesIO(data)) as file:
      version, params, target, *optimizer = file.values()
    return cls(flat.Vectors(params, target, optimizer), int(version))
