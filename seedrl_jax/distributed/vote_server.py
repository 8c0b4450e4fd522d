"""Host 0's part of `agreement`: takes all votes and hands out the results.

`hosts` opens it. Also finds out who is gone: whose connection closed, or who
says nothing for too long.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from seedrl_jax.distributed import host_wire, vote_client


class Hub:
  """Serves the `Agreement` of every host, its own host's too."""

  def __init__(
    self,
    address: tuple[str, int],
    secret: str,
    count: int,
    join_timeout: float,
  ):
    """Listens.

    Args:
      address: interface ('' for all) and port (0 for a free one).
      secret: that hosts must know.
      count: hosts that will connect.
      join_timeout: seconds in which all must.

    Raises:
      OSError: where it cannot listen there.
    """
    family = socket.AF_INET6 if ':' in address[0] else socket.AF_INET
    self._listener = socket.create_server(address, family=family)
    self.port: int = self._listener.getsockname()[1]
    self._secret = secret
    self._count = count
    self._join_timeout = self._timeout = join_timeout
    self._lock = threading.Lock()
    self._wires: dict[int, host_wire.Wire] = {}
    self._silences: dict[int, host_wire.Silence] = {}
    self._votes: dict[int, Any] = {}
    # Have said goodbye, or are gone; and those whose connection has ended.
    self._left: set[int] = set()
    self._ended: set[int] = set()
    self._lost = ''
    self._closing = threading.Event()
    self._threads: list[threading.Thread] = []
    self._start('hosts-hub', self._accept)
    self._start('hosts-watch', self._watch)

  def set_timeout(self, timeout: float) -> None:
    """Takes a host for gone after `timeout` seconds of silence."""
    with self._lock:
      self._timeout = timeout
      self._silences = {i: host_wire.Silence(timeout) for i in self._silences}

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
      wire = host_wire.Wire(connection)
      match wire.receive():
        case ['hello', self._secret, int(index), int(count)]:
          if problem := self._problem(index, count):
            wire.send('refused', problem)
            wire.close()
            continue
          connection.settimeout(None)
          with self._lock:
            self._wires[index] = wire
            self._silences[index] = host_wire.Silence(self._timeout)
            lost = self._lost
          if lost:
            # It came too late to hear of it.
            wire.send('lost', lost)
          self._start(f'hosts-hub-{index}', self._serve, index, wire)
        case _:
          wire.close()

  def _problem(self, index: int, count: int) -> str:
    """Returns what keeps a host from joining; '' for nothing."""
    if count != self._count:
      return (
        f'--num_processes={count}: host 0 has --num_processes={self._count}; '
        'give all hosts the same.'
      )
    with self._lock:
      if index in self._wires:
        return (
          f'--process_id={index}: there is a host {index} already; give every '
          'host another.'
        )
    return ''

  def _serve(self, index: int, wire: host_wire.Wire) -> None:
    """Takes a host's messages until it leaves or is gone."""
    while message := wire.receive():
      self._silences[index].heard()
      match message:
        case ['vote', _, value]:
          self._count_vote(index, value)
        case ['stop']:
          self._tell('stop')
        case ['leave', reason]:
          if reason:
            self._lose(index, f'has failed ({reason})')
          with self._lock:
            self._left.add(index)
    with self._lock:
      self._ended.add(index)
      has_left = index in self._left
    if not has_left:
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
    joining = host_wire.Silence(self._join_timeout)
    while not self._closing.wait(host_wire.Silence(self._timeout).tick):
      self._tell('beat')
      with self._lock:
        # Host 0 is this process.
        missing = [i for i in range(1, self._count) if i not in self._wires]
        silent = [
          i
          for i, silence in self._silences.items()
          if i and i not in self._left and silence.is_over()
        ]
      if missing and joining.is_over():
        self._lose(missing[0], f'did not join for {self._join_timeout:g} s')
      for index in silent:
        self._lose(index, f'has said nothing for {self._timeout:g} s')
        with self._lock:
          # Not to be waited for.
          self._ended.add(index)

  def _lose(self, index: int, what: str) -> None:
    """Tells the others, once, of a host that is gone."""
    with self._lock:
      self._left.add(index)
      if self._lost or self._closing.is_set():
        return
      self._lost = vote_client.lost_sentence(index, what)
    self._tell('lost', self._lost)

  def _tell(self, *message: Any) -> None:
    with self._lock:
      wires = [w for i, w in self._wires.items() if i not in self._left]
    for wire in wires:
      # One that cannot be reached is found out by whoever reads from it.
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
    with self._lock:
      wires = list(self._wires.values())
    for wire in wires:
      wire.close()
    for thread in self._threads:
      thread.join(host_wire.SEND_SECONDS)

  def _have_all_ended(self) -> bool:
    with self._lock:
      return self._ended >= self._wires.keys()
