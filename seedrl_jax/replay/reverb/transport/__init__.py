"""Bidirectional streams of messages to a Reverb server.

Ours copies a message once; gRPC's own, with SEEDRL_REVERB_TRANSPORT=grpc, two
or three times. Unary calls always use gRPC.
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


def make_stream(address: str, method: str) -> Stream:
  """Returns a new stream of '/package.Service/Method' at 'host:port'."""
  if os.environ.get('SEEDRL_REVERB_TRANSPORT') == 'grpc':
    return GrpcStream(address, method)
  return Http2Stream(address, method)
