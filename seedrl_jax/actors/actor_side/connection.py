"""An actor's stream to its learner."""

import queue
import threading
from typing import Any

import grpc

from seedrl_jax.actors import wire
from seedrl_jax.net import addresses, credentials

_CONNECT_SECONDS = 10.0
_KEEPALIVE_MS = 20_000
_OPTIONS = (
  ('grpc.max_receive_message_length', -1),
  ('grpc.max_send_message_length', -1),
  # A connection for each group: one is not fast enough for all.
  ('grpc.use_local_subchannel_pool', 1),
  # See `replay/reverb/client/connection.py`; actors connect again themselves.
  ('grpc.enable_retries', 0),
  # Notices that the learner's machine is gone.
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
  """An actor and its learner do not work together; says why."""


class IncompatibleLearner(ValueError):
  """An actor cannot serve a learner; says why."""


class PeerLost(Exception):
  """The learner, or its Reverb server, is not reachable; it may come back."""


class LearnerConnection:
  """One stream to the learner; the caller closes it."""

  def __init__(
    self, address: addresses.Address, security: credentials.Security
  ):
    # What may help if the stream fails; '' if it has connected.
    self.advice = ''
    self._address = address
    self._security = security
    self._channel: grpc.Channel | None = addresses.open_channel(
      address, security, _OPTIONS
    )
    self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    # Changes of the channel; None, from `cancel`, ends the wait for them.
    self._states = queue.SimpleQueue[grpc.ChannelConnectivity | None]()
    self._lock = threading.Lock()
    self._cancelled = False
    self._rpc: Any = None

  def open(self) -> None:
    """Begins the stream; raises `PeerLost` if nobody answers."""
    assert self._channel is not None
    self._connect(self._channel)
    rpc = self._channel.stream_stream(_METHOD)(
      iter(self._outgoing.get, None), metadata=self._security.metadata()
    )
    with self._lock:
      self._rpc = rpc
      if self._cancelled:
        rpc.cancel()

  def send(self, message: bytes) -> None:
    """Sends a message; does not wait."""
    self._outgoing.put(message)

  def receive(self) -> wire.Message | None:
    """Waits for the learner's next message; None: the training has ended.

    Raises WireError if the message is malformed, and `grpc.RpcError` if the
    stream failed.
    """
    message = next(self._rpc, None)
    return None if message is None else wire.parse(message)

  def cancel(self) -> None:
    """Ends every wait; any thread may call it."""
    with self._lock:
      self._cancelled = True
      self._states.put(None)
      if self._rpc is not None:
        self._rpc.cancel()

  def close(self) -> None:
    """Ends stream and channel, and frees them; may be called again.

    A stream that is left could hang at exit, when gRPC's threads are stopped
    with their locks held.
    """
    self._outgoing.put(None)
    if self._channel is not None:
      self._channel.close()
      self._channel = None
    with self._lock:
      rpc, self._rpc = self._rpc, None
    del rpc

  def _connect(self, channel: grpc.Channel) -> None:
    """Waits until the channel has connected, or failed to.

    A stream that begins before may hang for ever. After a failure, it fails
    with the reason.
    """
    states = self._states
    channel.subscribe(states.put, try_to_connect=True)
    try:
      while (state := states.get(timeout=_CONNECT_SECONDS)) in _CONNECTING:
        pass
    except queue.Empty:
      raise PeerLost(f'nobody answers at {self._address.text}.') from None
    finally:
      channel.unsubscribe(states.put)
    if state == grpc.ChannelConnectivity.READY or self._address.is_unix:
      return
    if self._security.certificate:
      self.advice = (
        '; the learner needs a certificate for the host in --learner, and '
        '--tls_roots must hold it, or its authority'
      )
    else:
      self.advice = '; if the learner has a certificate, give --tls_roots'
