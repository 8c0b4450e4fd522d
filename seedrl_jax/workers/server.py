"""A worker's side of a parameter server of several shards."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import ml_collections
import numpy as np

from seedrl_jax.actors import addresses, credentials
from seedrl_jax.hosts import coordinator
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, shard, shared, wire

# Seconds between two looks at whether a shard that is gone can come back.
_LOOK_SECONDS = 0.5
# Codes of calls to a shard that is gone, or that ends.
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  ('grpc.use_local_subchannel_pool', 1),
  ('grpc.enable_http_proxy', 0),
  # A shard is back within seconds.
  ('grpc.initial_reconnect_backoff_ms', 200),
  ('grpc.min_reconnect_backoff_ms', 200),
  ('grpc.max_reconnect_backoff_ms', 1000),
)


def slices(size: int, count: int) -> list[slice]:
  """Returns each shard's slice of `size` parameters, as equal as possible."""
  edges = [size * i // count for i in range(count + 1)]
  return list(itertools.starmap(slice, itertools.pairwise(edges)))


def cut(vectors: flat.Vectors, part: slice) -> flat.Vectors:
  """Returns a shard's slice of the vectors; each has all of the scalars."""
  return flat.Vectors(
    vectors.params[part],
    vectors.target[part],
    [x[part] if x.ndim else x for x in vectors.optimizer],
  )


def join(parts: Sequence[flat.Vectors]) -> flat.Vectors:
  """Returns all shards' vectors as one, with the scalars of the first."""
  return flat.Vectors(
    np.concatenate([part.params for part in parts]),
    np.concatenate([part.target for part in parts]),
    [
      np.concatenate(found) if found[0].ndim else found[0]
      for found in zip(*(part.optimizer for part in parts), strict=True)
    ],
  )


class ServerParameters:
  """Parameters of a server; see `shared.SharedParameters`.

  A gradient goes to all shards at once, and their replies bring the parameters
  of the next `read`. Each shard counts versions of its own, and judges by them
  how old a gradient is; the first one's are those of the run.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    config: ml_collections.ConfigDict,
    places: Sequence[str],
  ):
    """Connects at the first call; `places` are the shards' addresses."""
    self._board, self._config = board, config
    self._slices = slices(trainer.size, len(places))
    security = credentials.learner_security(config.actors)
    self._connections = [
      _Connection(
        f'Shard {i} of the parameter server, at {place},',
        addresses.parse(shard.FLAG, place),
        security,
        config.asynchronous.patience,
        self.check,
      )
      for i, place in enumerate(places)
    ]
    nothing = np.zeros(0, np.float32)
    # No epoch is negative: the first reply brings the target.
    first = wire.Reply(board.version(), -1, 0.0, False, nothing, nothing)
    self._replies = [first] * len(places)
    self._is_read = True

  @property
  def fds(self) -> dict[str, int]:
    """File descriptors to hand to other workers: none."""
    return {}

  def check(self) -> None:
    """Raises `WorkerFailed` if a shard is known not to come back."""

  def read(self) -> shared.Snapshot:
    if self._is_read:
      self._exchange([wire.Request(*reply[:2]) for reply in self._replies])
    self._is_read = True
    return shared.Snapshot(
      np.concatenate([reply.params for reply in self._replies]),
      np.concatenate([reply.target for reply in self._replies]),
      self._replies[0].version,
    )

  def apply(
    self, gradient: np.ndarray, version: int, learning_rate: float
  ) -> None:
    """Applies a gradient; `version` must be that of the last `read`.

    A gradient that a lost shard may not have applied is counted, not repeated.
    """
    assert version == self._replies[0].version
    gradient = self._clip(gradient)
    is_lost = self._exchange([
      wire.Request(*reply[:2], learning_rate, gradient[part])
      for reply, part in zip(self._replies, self._slices, strict=True)
    ])
    self._is_read = False
    if is_lost:
      self._board.own.lost += 1
    elif all(reply.kept for reply in self._replies):
      self._board.count(self._replies[0].version - 1 - version)
    else:
      self._board.own.stale += 1

  def _clip(self, gradient: np.ndarray) -> np.ndarray:
    """Clips the norm over all shards, which each of them does not know."""
    most = self._config.optimizer.clip_norm
    norm = np.linalg.norm(gradient)
    return gradient * (most / norm) if most and norm > most else gradient

  def _exchange(self, requests: Sequence[wire.Request]) -> bool:
    """Takes all shards' replies; returns whether one did not get its request.

    Such a shard is then only read.
    """
    packed = [request.pack() for request in requests]
    answers, is_lost = self._ask(
      wire.EXCHANGE,
      packed,
      [request._replace(gradient=None).pack() for request in requests],
    )
    for i, (answer, part) in enumerate(zip(answers, self._slices, strict=True)):
      reply = wire.Reply.unpack(answer, part.stop - part.start)
      if reply.target is None:
        reply = reply._replace(target=self._replies[i].target)
      self._replies[i] = reply
    self._board.own.version = self._replies[0].version
    self._board.own.shards_cpu = sum(x.cpu_seconds for x in self._replies)
    self._board.own['bytes'] += sum(map(len, (*packed, *answers)))
    return is_lost

  def _ask(
    self, method: str, requests: Sequence[bytes], again: Sequence[bytes]
  ) -> tuple[list[bytes], bool]:
    """Returns all shards' answers, and whether a shard was gone.

    Once it is back, such a shard gets the request in `again`.
    """
    calls = [
      connection.call(method, request)
      for connection, request in zip(self._connections, requests, strict=True)
    ]
    pairs = list(zip(self._connections, calls, strict=True))
    answers = [connection.answer(call) for connection, call in pairs]
    found = [
      connection.ask_until_back(method, request) if answer is None else answer
      for connection, answer, request in zip(
        self._connections, answers, again, strict=True
      )
    ]
    return found, None in answers

  def vectors(self) -> flat.Vectors:
    """Returns a copy of all; each shard's is of some moment of its own."""
    nothing = [b''] * len(self._connections)
    answers, _ = self._ask(wire.STATE, nothing, nothing)
    return join([wire.State.unpack(answer).vectors for answer in answers])

  def close(self) -> None:
    for connection in self._connections:
      connection.close()


class _Connection:
  """Calls one shard."""

  def __init__(
    self,
    name: str,
    address: addresses.Address,
    security: credentials.Security,
    patience: float,
    check: Callable[[], None],
  ):
    """`check`, called while waiting, raises if there is no hope.

    The server's certificate is the only one to trust.
    """
    self._name, self._patience, self._check = name, patience, check
    self._metadata = security.metadata()
    self._channel = addresses.open_channel(address, security, _OPTIONS)
    self._methods: Mapping[str, Any] = {
      method: self._channel.unary_unary(f'/{wire.SERVICE}/{method}')
      for method in (wire.EXCHANGE, wire.STATE)
    }
    self._why = self._failure = ''

  def call(self, method: str, request: bytes, wait: bool = False) -> Any:
    """Begins a call; with `wait`, as soon as the shard is there."""
    if self._failure:
      raise coordinator.WorkerFailed(self._failure)
    return self._methods[method].future(
      request,
      timeout=self._patience,
      metadata=self._metadata,
      wait_for_ready=wait,
    )

  def answer(self, call: Any) -> bytes | None:
    """Waits for the answer; returns None if the shard is gone.

    Raises:
      WorkerFailed: if it refuses or does not answer.
    """
    while True:
      try:
        return call.result(_LOOK_SECONDS)
      except grpc.FutureTimeoutError:
        self._check()
      except grpc.RpcError:
        if call.code() in _GONE:
          self._why = call.details()
          return None
        if call.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
          raise self._fail_silent() from None
        raise self._fail(f'refuses a call: {call.details()}.') from None

  def ask_until_back(self, method: str, request: bytes) -> bytes:
    """Asks a shard that is gone until it answers; see `answer`."""
    deadline = time.monotonic() + self._patience
    while time.monotonic() < deadline:
      answer = self.answer(self.call(method, request, wait=True))
      if answer is not None:
        return answer
    raise self._fail_silent()

  def _fail_silent(self) -> coordinator.WorkerFailed:
    why = f' ({self._why})' if self._why else ''
    return self._fail(
      f'has not answered for {self._patience:g} s{why}; give it longer with '
      '--config.asynchronous.patience, or start the run again to resume from '
      'its last checkpoint.'
    )

  def _fail(self, text: str) -> coordinator.WorkerFailed:
    # The next calls fail at once.
    self._failure = f'{self._name} {text}'
    return coordinator.WorkerFailed(self._failure)

  def close(self) -> None:
    self._channel.close()
