"""Votes among the hosts of a run, as JSON lines over sockets to host 0.

The hosts vote on what they must do in the same order (an update, a checkpoint,
the end): so no device waits in a collective for a host that has no batch, has
stopped or has died.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from seedrl_jax.hosts import coordinator

# To send a message, to connect, and to end a thread.
_SEND_SECONDS = 10.0
_RETRY_SECONDS = 0.1  # between attempts to reach host 0
_MOST_BYTES = 1 << 26  # of a message
_BEAT_SECONDS = 0.25  # at most, between messages that a host is there


def lost_sentence(host: int, what: str) -> str:
  return (
    f'Host {host} {what}; start all hosts again to resume from the last '
    'checkpoint.'
  )


class HostWire:
  """JSON lines over a socket, which it owns; any thread sends, one receives."""

  def __init__(self, connection: socket.socket):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # How it ended, and whether a message said that it would.
    self.end = 'its connection was closed'
    self.has_left = False
    self._socket = connection
    self._file = connection.makefile('rb')
    self._lock = threading.Lock()
    self.closed = threading.Event()
    self._beating: threading.Thread | None = None

  def set_timeout(self, seconds: float) -> None:
    """Sets after how long the other process counts as gone if it is silent.

    Both sides do. Each then sends messages from a thread, so a process that is
    busy is not gone, but a frozen one is.
    """
    # Raises if the connection has ended.
    with contextlib.suppress(OSError):
      self._socket.settimeout(seconds)
    if self._beating is None:
      pause = min(seconds / 4, _BEAT_SECONDS)
      self._beating = _start('hosts-beat', self._beat, pause)

  def _beat(self, pause: float) -> None:
    while not self.closed.wait(pause):
      self.send('alive')

  def send(self, *message: Any) -> None:
    """Sends a message; `receive` finds out if the other side is gone."""
    data = json.dumps(message, separators=(',', ':')).encode() + b'\n'
    with contextlib.suppress(OSError), self._lock:
      self._socket.sendall(data)

  def receive(self) -> list[Any] | None:
    """Returns the next message; None at the end or if it is not JSON."""
    try:
      line = self._file.readline(_MOST_BYTES)
      message = json.loads(line) if line.endswith(b'\n') else None
    except (ConnectionError, ValueError):
      return None
    except TimeoutError:
      self.end = f'it was silent for {self._socket.gettimeout():g} s'
      return None
    except OSError as e:
      self.end = e.strerror or str(e)
      return None
    return message if isinstance(message, list) and message else None

  def close(self) -> None:
    """Closes the connection; wakes `receive`."""
    self.closed.set()
    with contextlib.suppress(OSError):
      self._socket.shutdown(socket.SHUT_RDWR)
    self._socket.close()


class VoteClient:
  """A host's connection to host 0's `VoteServer`."""

  def __init__(
    self,
    address: tuple[str, int],
    secret: str,
    index: int,
    count: int,
    join_timeout: float,
  ):
    """Connects; raises `HostsMismatch` after `join_timeout` seconds.

    `count` is the number of hosts according to this one's flags.
    """
    # A sentence about a host that is gone, or why host 0 does not accept this
    # one; '' if all are well.
    self.lost = ''
    # Whether a host asked all to stop.
    self.stop_wanted = False
    self._changed = threading.Condition()
    # The present vote's result, once there is one.
    self._results: list[list[Any]] = []
    self._closing = False
    connection = _connect(address, join_timeout)
    # IP addresses with which this host and host 0 reach each other.
    self.local_address: str = connection.getsockname()[0]
    self.server_address: str = connection.getpeername()[0]
    self._wire = HostWire(connection)
    self._wire.send('hello', secret, index, count)
    self.set_timeout = self._wire.set_timeout
    self.set_timeout(join_timeout)
    self._reader = _start('hosts-reader', self._read)

  def gather(self, value: Any) -> list[Any]:
    """Waits for a value of each host; returns all of them by index.

    One thread of each host calls it, with JSON values.

    Raises:
      HostLost: if a host is gone, or host 0 does not accept this one.
    """
    self._results.clear()
    self._wire.send('vote', value)
    with self._changed:
      self._changed.wait_for(lambda: self.lost or self._results)
      if self._results:
        return self._results[0]
    raise coordinator.HostLost(self.lost)

  def ask_to_stop(self) -> None:
    """Asks all hosts to stop; returns at once."""
    self._wire.send('stop')

  def wait_lost(self, timeout: float) -> str:
    """Waits until a host is gone; returns `lost`."""
    with self._changed:
      self._changed.wait_for(lambda: self.lost, timeout)
      return self.lost

  def announce_end(self, reason: str) -> None:
    """Ends this host's part; keeps the connection until the process ends.

    Host 0 waits for that. The others report `reason`, unless it is ''.
    """
    if not self._closing:
      self._closing = True
      self._wire.send('leave', reason)

  def leave(self, reason: str = '') -> None:
    """Ends this host's part; see `announce_end` for `reason`."""
    self.announce_end(reason)
    self._wire.close()
    self._reader.join(_SEND_SECONDS)

  def _read(self) -> None:
    while message := self._wire.receive():
      match message:
        case ['result', values]:
          with self._changed:
            self._results.append(values)
            self._changed.notify_all()
        case ['stop']:
          self.stop_wanted = True
        case ['lost', sentence]:
          self._lose(sentence)
    self._lose(lost_sentence(0, f'is gone ({self._wire.end})'))

  def _lose(self, sentence: str) -> None:
    with self._changed:
      if not (self.lost or self._closing):
        self.lost = sentence
      self._changed.notify_all()


def _connect(address: tuple[str, int], timeout: float) -> socket.socket:
  """Connects to host 0, which may not have started yet."""
  deadline = time.monotonic() + timeout
  while True:
    try:
      return socket.create_connection(address, _SEND_SECONDS)
    except OSError as e:
      if time.monotonic() > deadline:
        raise coordinator.HostsMismatch(
          f'--coordinator={address[0]}:{address[1]}: host 0 was not found '
          f'there for {timeout:g} s ({e}); start it with --process_id=0, or '
          'correct the address.'
        ) from e
      time.sleep(_RETRY_SECONDS)


class VoteServer:
  """Host 0's part: counts the votes, and reports hosts that are gone."""

  def __init__(
    self, address: tuple[str, int], secret: str, count: int, join_timeout: float
  ):
    """Listens at `address`, or raises `OSError`.

    '' is every interface, port 0 any free one. All `count` hosts must know
    `secret` and join within `join_timeout` seconds.
    """
    family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
    self._listener = socket.create_server(address, family=family)
    self.port: int = self._listener.getsockname()[1]
    self._secret = secret
    self._count = count
    self._timeout = join_timeout
    self._lock = threading.Lock()
    # The hosts that have joined, and the threads that serve connections.
    self._voters: dict[int, HostWire] = {}
    self._serving: list[tuple[socket.socket, threading.Thread]] = []
    self._votes: dict[int, Any] = {}
    self._lost = ''
    self._stop_wanted = False
    self._closing = False
    self._joining = threading.Timer(join_timeout, self._end_joining)
    self._joining.name = 'hosts-joining'
    self._joining.daemon = True
    self._joining.start()
    self._acceptor = _start('hosts-server', self._accept)

  def set_timeout(self, seconds: float) -> None:
    """See `HostWire.set_timeout`."""
    with self._lock:
      self._timeout = seconds
      for wire in self._voters.values():
        wire.set_timeout(seconds)

  def _accept(self) -> None:
    # `close` makes this raise.
    with contextlib.suppress(OSError):
      while True:
        connection, _ = self._listener.accept()
        thread = _start('hosts-server-voter', self._serve, connection)
        self._serving.append((connection, thread))

  def _end_joining(self) -> None:
    # Host 0 is this process.
    missing = [i for i in range(1, self._count) if i not in self._voters]
    if missing:
      self._lose(missing[0], f'did not join for {self._timeout:g} s')

  def _serve(self, connection: socket.socket) -> None:
    """Handles a host's messages until it leaves or is gone."""
    connection.settimeout(_SEND_SECONDS)
    wire = HostWire(connection)
    match wire.receive():
      case ['hello', self._secret, int(index), int(count)]:
        if problem := self._join(index, count, wire):
          wire.send('lost', problem)
        else:
          self._read(index, wire)
    wire.close()

  def _join(self, index: int, count: int, wire: HostWire) -> str:
    """Makes a host a voter; returns what keeps it from joining, or ''."""
    if count != self._count or not 0 <= index < count:
      return (
        f'--num_processes={count}: host 0 has --num_processes={self._count}; '
        'give all hosts the same.'
      )
    with self._lock:
      if index in self._voters:
        return (
          f'--process_id={index}: there is a host {index} already; give every '
          'host another.'
        )
      wire.set_timeout(self._timeout)
      self._voters[index] = wire
      lost, stop_wanted = self._lost, self._stop_wanted
    # The others got these before it joined.
    if lost:
      wire.send('lost', lost)
    if stop_wanted:
      wire.send('stop')
    return ''

  def _read(self, index: int, wire: HostWire) -> None:
    while message := wire.receive():
      match message:
        case ['vote', value]:
          self._count_vote(index, value)
        case ['stop']:
          with self._lock:
            self._stop_wanted = True
          self._tell('stop')
        case ['leave', reason]:
          if reason:
            self._lose(index, f'has failed ({reason})')
          wire.has_left = True
    if not wire.has_left:
      self._lose(index, f'is gone ({wire.end})')

  def _count_vote(self, index: int, value: Any) -> None:
    with self._lock:
      self._votes[index] = value
      if len(self._votes) < self._count:
        return
      values = [self._votes[i] for i in range(self._count)]
      self._votes = {}
    self._tell('result', values)

  def _lose(self, index: int, what: str) -> None:
    with self._lock:
      if index in self._voters:
        self._voters[index].has_left = True
      if self._lost or self._closing:
        return
      self._lost = lost_sentence(index, what)
    self._tell('lost', self._lost)

  def _tell(self, *message: Any) -> None:
    with self._lock:
      wires = [wire for wire in self._voters.values() if not wire.has_left]
    for wire in wires:
      wire.send(*message)

  def close(self) -> None:
    """Closes when all hosts that joined have left, or after the time-out."""
    self._joining.cancel()
    deadline = time.monotonic() + max(self._timeout, _SEND_SECONDS)
    for wire in list(self._voters.values()):
      wire.closed.wait(max(0.0, deadline - time.monotonic()))
    self._closing = True
    with contextlib.suppress(OSError):
      # Wakes `accept`.
      self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()
    self._acceptor.join(_SEND_SECONDS)
    for connection, thread in self._serving:
      with contextlib.suppress(OSError):
        # Wakes `receive`.
        connection.shutdown(socket.SHUT_RDWR)
      thread.join(_SEND_SECONDS)


def _start(
  name: str, target: Callable[..., None], *args: Any
) -> threading.Thread:
  thread = threading.Thread(target=target, args=args, name=name, daemon=True)
  thread.start()
  return thread
