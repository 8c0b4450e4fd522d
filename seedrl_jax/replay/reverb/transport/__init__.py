"""Bidirectional streams of messages to a Reverb server.

SEEDRL_REVERB_TRANSPORT chooses `http2` (ours, the default; copies a message
once) or `grpc` (copies it two or three times). Unary calls always use gRPC.
"""

import os

from seedrl_jax.replay.reverb.transport.grpc_stream import (
  CHANNEL_OPTIONS,
  GrpcStream,
)
from seedrl_jax.replay.reverb.transport.http2_stream import Http2Stream
from seedrl_jax.replay.reverb.transport.stream import (
  Buffer,
  Stream,
  StreamError,
  exchange,
)

__all__ = [
  'CHANNEL_OPTIONS',
  'Buffer',
  'Stream',
  'StreamError',
  'exchange',
  'make_stream',
]

_TRANSPORTS: dict[str, type[Stream]] = {
  'http2': Http2Stream,
  'grpc': GrpcStream,
}


def make_stream(address: str, method: str) -> Stream:
  """Returns a new stream of '/package.Service/Method' at 'host:port'."""
  name = os.environ.get('SEEDRL_REVERB_TRANSPORT', 'http2')
  if name not in _TRANSPORTS:
    raise ValueError(f'SEEDRL_REVERB_TRANSPORT={name}: must be http2 or grpc.')
  return _TRANSPORTS[name](address, method)
