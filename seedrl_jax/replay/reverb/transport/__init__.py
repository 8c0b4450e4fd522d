"""Bidirectional streams of messages to a Reverb server, behind one interface.

`make_stream` gives our own HTTP/2 stream, which copies a message once;
gRPC for Python copies it two or three times. To measure what that gains,
SEEDRL_REVERB_TRANSPORT=grpc chooses gRPC's instead. Unary calls always use
gRPC, with `CHANNEL_OPTIONS`.
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
  """Returns a stream that has yet to begin.

  Args:
    address: 'host:port'.
    method: path of the gRPC method, as '/package.Service/Method'.
  """
  name = os.environ.get('SEEDRL_REVERB_TRANSPORT', 'http2')
  return _TRANSPORTS[name](address, method)
