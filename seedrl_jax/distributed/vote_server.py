"""Host 0's part of the votes: collects them and sends out the results."""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from seedrl_jax.distributed import host_wire, vote_client


@dataclasses.dataclass
class _Voter:
  """A host that has joined; `ended` if its connection need not be awaited."""

  wire: host_wire.HostWire
  silence: host_wire.SilenceTimer
  left: bool = False
  ended: bool = False


class VoteServer:
  """Counts the votes, and reports hosts that disconnect or stay silent."""

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
    self._join_timeout = self._timeout = join_timeout
    self._lock = threading.Lock()
    self._voters: dict[int, _Voter] = {}
    self._votes: dict[int, Any] = {}
    self._lost = ''
    self._closing = threading.Event()
    self._threads: list[threading.Thread] = []
    self._start('hosts-server', self._accept)
    self._start('hosts-watch', self._watch)

  def set_timeout(self, timeout: float) -> None:
    """Sets after how many seconds of silence a host counts as gone."""
    with self._lock:
      self._timeout = timeout
      for voter in self._voters.values():
        voter.silence = host_wire.SilenceTimer(timeout)

  def _start(self, name: str, target: Callable[..., None], *args: Any) -> None:
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    self._threads.append(thread)
    thread.start()

  def _accept(self) -> None:
    while True:
      try:
        connection, _ = self._listener.accept()
      except OSError:
        return  # closed
      connection.settimeout(host_wire.SEND_SECONDS)
      wire = host_wire.HostWire(connection)
      match wire.receive():
        case ['hello', self._secret, int(index), int(count)]:
          if problem := self._problem(index, count):
            wire.send('refused', problem)
            wire.close()
            continue
          connection.settimeout(None)
          self._join(index, wire)
        case _:
          wire.close()

  def _problem(self, index: int, count: int) -> str:
    """Returns what keeps a host from joining; '' for nothing."""
    if count != self._count:
      return (
        f'--num_processes={count}: host 0 has --num_processes={self._count}; '
        'give all hosts the same.'
      )
    if index in self._voters:
      return (
        f'--process_id={index}: there is a host {index} already; give every '
        'host another.'
      )
    return ''

  def _join(self, index: int, wire: host_wire.HostWire) -> None:
    with self._lock:
      silence = host_wire.SilenceTimer(self._timeout)
      voter = self._voters[index] = _Voter(wire, silence)
      lost = self._lost
    if lost:
      # The others got this before it joined.
      wire.send('lost', lost)
    self._start(f'hosts-server-{index}', self._serve, index, voter)

  def _serve(self, index: int, voter: _Voter) -> None:
    """Handles a host's messages until it leaves or is gone."""
    while message := voter.wire.receive():
      voter.silence.heard()
      match message:
        case ['vote', value]:
          self._count_vote(index, value)
        case ['stop']:
          self._tell('stop')
        case ['leave', reason]:
          if reason:
            self._lose(index, f'has failed ({reason})')
          voter.left = True
    voter.ended = True
    if not voter.left:
      self._lose(index, 'is gone (its connection was closed)')

  def _count_vote(self, index: int, value: Any) -> None:
    with self._lock:
      self._votes[index] = value
      if len(self._votes) < self._count:
        return
      values = [self._votes[i] for i in range(self._count)]
      self._votes = {}
    self._tell('result', values)

  def _watch(self) -> None:
    joining = host_wire.SilenceTimer(self._join_timeout)
    while not self._closing.wait(host_wire.SilenceTimer(self._timeout).tick):
      self._tell('beat')
      with self._lock:
        voters = dict(self._voters)
      # Host 0 is this process.
      missing = [i for i in range(1, self._count) if i not in voters]
      if missing and joining.is_over():
        self._lose(missing[0], f'did not join for {self._join_timeout:g} s')
      for index, voter in voters.items():
        if index and not voter.left and voter.silence.is_over():
          self._lose(index, f'has said nothing for {self._timeout:g} s')
          voter.ended = True

  def _lose(self, index: int, what: str) -> None:
    with self._lock:
      if index in self._voters:
        self._voters[index].left = True
      if self._lost or self._closing.is_set():
        return
      self._lost = vote_client.lost_sentence(index, what)
    self._tell('lost', self._lost)

  def _tell(self, *message: Any) -> None:
    with self._lock:
      wires = [v.wire for v in self._voters.values() if not v.left]
    for wire in wires:
      # If it is not reachable, the thread that reads from it will notice.
      wire.send(*message)

  def close(self) -> None:
    """Closes when all connections have ended, or after the time-out."""
    deadline = time.monotonic() + max(self._timeout, host_wire.SEND_SECONDS)
    while not self._have_all_ended() and time.monotonic() < deadline:
      self._closing.wait(0.01)
    self._closing.set()
    with contextlib.suppress(OSError):
      # Wakes `accept`.
      self._listener.shutdown(socket.SHUT_RDWR)
    self._listener.close()
    for voter in list(self._voters.values()):
      voter.wire.close()
    for thread in self._threads:
      thread.join(host_wire.SEND_SECONDS)

  def _have_all_ended(self) -> bool:
    with self._lock:
      return all(voter.ended for voter in self._voters.values())
