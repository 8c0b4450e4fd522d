"""An actor's call to its learner: messages in both directions, and its end.

`actor` opens it and waits for its channel, `following` speaks over it, too.
"""

import queue
import threading
from typing import Any

import grpc

from seedrl_jax.actors import addresses, tls, wire

# Seconds that connecting may take.
_ATTEMPT = 10.0
_KEEPALIVE_MS = 20_000
_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # A connection for every group: one is not fast enough for all.
  ('grpc.use_local_subchannel_pool', 1),
  # Notices a learner whose machine went away.
  ('grpc.keepalive_time_ms', _KEEPALIVE_MS),
  ('grpc.keepalive_timeout_ms', _KEEPALIVE_MS),
  ('grpc.http2.max_pings_without_data', 0),
  ('grpc.enable_http_proxy', 0),
)
_METHOD = f'/{wire.SERVICE}/{wire.METHOD}'
_CONNECTING = {
  grpc.ChannelConnectivity.IDLE,
  grpc.ChannelConnectivity.CONNECTING,
}


class ActorError(RuntimeError):
  """An actor and its learner cannot work together; says why."""


class Lost(Exception):
  """Somebody is not there (any more), and may be again; says who."""


class Call:
  """One stream to the learner; to be closed."""

  def __init__(self, address: addresses.Address, security: addresses.Security):
    """Prepares a channel; `open` connects it."""
    self._address = address
    self._security = security
    self._channel = addresses.open_channel(address, security, _OPTIONS)
    self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    # What `cancel` wakes: `open` waits for the channel, `hear` in the call.
    self._states: queue.SimpleQueue[grpc.ChannelConnectivity | None]
    self._states = queue.SimpleQueue()
    self._lock = threading.Lock()
    self._cancelled = False
    self._rpc: Any = None

  def open(self) -> None:
    """Connects and begins the stream.

    Raises:
      Lost: where nobody answers, or TLS fails, or after `cancel`.
    """
    self._connect()
    rpc = self._channel.stream_stream(_METHOD)(
      iter(self._outgoing.get, None),
      metadata=addresses.metadata(self._security),
    )
    with self._lock:
      self._rpc = rpc
      if self._cancelled:
        rpc.cancel()

  def say(self, message: bytes) -> None:
    """Sends a message; does not wait."""
    self._outgoing.put(message)

  def hear(self) -> wire.Message:
    """Waits for the learner's next message.

    Raises:
      Lost: where it ended the stream.
      wire.WireError: where it is none of this protocol.
      grpc.RpcError: as gRPC has it.
    """
    message = next(self._rpc, None)
    if message is None:
      raise Lost('it ended the stream.')
    return wire.parse(message)

  def refuse(self, reason: str) -> None:
    """Says why the actor ends; returns when the learner has read it."""
    self.say(wire.pack_json(wire.MessageKind.REFUSAL, {'reason': reason}))
    self._outgoing.put(None)
    for _ in self._rpc:
      pass

  def cancel(self) -> None:
    """Ends every wait, from any thread."""
    with self._lock:
      self._cancelled = True
      self._states.put(None)
      if self._rpc is not None:
        self._rpc.cancel()

  def close(self) -> None:
    """Ends stream and channel; nothing else may be called after it.

    As Python ends it stops gRPC's threads wherever they are, and what is left
    of a stream would then wait for ever for a lock that one of them held. So
    the last of it goes here.
    """
    self._outgoing.put(None)
    self._channel.close()
    del self._channel
    with self._lock:
      rpc, self._rpc = self._rpc, None
    del rpc

  def _connect(self) -> None:
    """Waits until the channel is connected, or cannot be.

    A stream that is begun while its channel connects may hang for ever where
    that fails.
    """
    states = self._states
    self._channel.subscribe(states.put, try_to_connect=True)
    try:
      while (state := states.get(timeout=_ATTEMPT)) in _CONNECTING:
        pass
    except queue.Empty:
      state = None
    finally:
      self._channel.unsubscribe(states.put)
    if state == grpc.ChannelConnectivity.READY:
      return
    reason = ''
    if state is not None and not self._address.is_unix:
      reason = tls.disagreement(self._address, self._security.certificate)
    raise Lost(reason or f'nobody answers at {self._address.text}.')
