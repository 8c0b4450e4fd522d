"""A scripted Reverb server on loopback, for what a real one rarely does."""

import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc

from seedrl_jax.replay.reverb.proto import reverb_pb2

_SERVICE = 'deepmind.reverb.ReverbService'

InsertAnswer = Callable[[reverb_pb2.InsertStreamRequest], Iterable[int]]
SampleAnswer = Callable[
  [reverb_pb2.SampleStreamRequest],
  Iterable[reverb_pb2.SampleStreamResponse],
]


class Abort(Exception):
  """Raised by an answer to fail the call with this status."""

  def __init__(self, code: grpc.StatusCode, details: str = 'as told'):
    super().__init__(code, details)
    self.code, self.details = code, details


class FakeServer:
  """Answers each method by a function that tests may replace.

  Attributes:
    on_insert: keys to acknowledge for a request; all of its items by default.
    on_sample: responses to a request.
    on_call: response to a unary call by method name; empty by default.
    inserts: the requests of each insert stream.
    samples, calls: all sample requests, and unary calls (method, request).
  """

  def __init__(self) -> None:
    self.on_insert: InsertAnswer = lambda r: [item.key for item in r.items]
    self.on_sample: SampleAnswer = lambda request: []
    self.on_call: dict[str, Callable[[Any], Any]] = {}
    self.inserts: list[list[reverb_pb2.InsertStreamRequest]] = []
    self.samples: list[reverb_pb2.SampleStreamRequest] = []
    self.calls: list[tuple[str, Any]] = []
    self._port = 0
    self._server: grpc.Server | None = None

  @property
  def address(self) -> str:
    return f'127.0.0.1:{self._port}'

  def start(self) -> 'FakeServer':
    """Serves, on the same port after a `stop`."""
    pool = concurrent.futures.ThreadPoolExecutor(16)
    options = [
      ('grpc.max_receive_message_length', -1),
      # Otherwise connections might reach the previous listener.
      ('grpc.so_reuseport', 0),
    ]
    self._server = grpc.server(pool, options=options)
    self._server.add_generic_rpc_handlers([self._handlers()])
    self._port = self._server.add_insecure_port(f'127.0.0.1:{self._port}')
    self._server.start()
    return self

  def stop(self) -> None:
    """Fails all calls with a transport error."""
    if self._server is not None:
      self._server.stop(grace=None).wait()
      self._server = None

  def _handlers(self) -> grpc.GenericRpcHandler:
    pb = reverb_pb2
    methods = {
      'InsertStream': grpc.stream_stream_rpc_method_handler(
        self._insert,
        pb.InsertStreamRequest.FromString,
        pb.InsertStreamResponse.SerializeToString,
      ),
      'SampleStream': grpc.stream_stream_rpc_method_handler(
        self._sample,
        pb.SampleStreamRequest.FromString,
        pb.SampleStreamResponse.SerializeToString,
      ),
    }
    unary = {
      'ServerInfo': (pb.Empty, pb.ServerInfoResponse),
      'MutatePriorities': (pb.MutatePrioritiesRequest, pb.Empty),
      'Checkpoint': (pb.Empty, pb.CheckpointResponse),
    }
    for name, (request, response) in unary.items():
      methods[name] = grpc.unary_unary_rpc_method_handler(
        self._unary(name, response),
        request.FromString,
        response.SerializeToString,
      )
    return grpc.method_handlers_generic_handler(_SERVICE, methods)

  def _unary(self, name: str, response: Any) -> Callable[..., Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
      self.calls.append((name, request))
      try:
        return self.on_call.get(name, lambda _: response())(request)
      except Abort as e:
        context.abort(e.code, e.details)

    return answer

  def _insert(
    self,
    requests: Iterator[reverb_pb2.InsertStreamRequest],
    context: grpc.ServicerContext,
  ) -> Iterator[reverb_pb2.InsertStreamResponse]:
    received: list[reverb_pb2.InsertStreamRequest] = []
    self.inserts.append(received)
    try:
      for request in requests:
        received.append(request)
        for key in self.on_insert(request):
          yield reverb_pb2.InsertStreamResponse(keys=[key])
    except Abort as e:
      context.abort(e.code, e.details)

  def _sample(
    self,
    requests: Iterator[reverb_pb2.SampleStreamRequest],
    context: grpc.ServicerContext,
  ) -> Iterator[reverb_pb2.SampleStreamResponse]:
    try:
      for request in requests:
        self.samples.append(request)
        yield from self.on_sample(request)
    except Abort as e:
      context.abort(e.code, e.details)
