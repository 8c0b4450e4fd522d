"""Lets the processes of several hosts agree, over a socket to host 0.

`hosts` opens it. What all must do in the same order (an update, a checkpoint,
the end) is first voted on here: a device then never waits in a collective for
a host that has no batch, has stopped, or has died. Needs no JAX.
"""

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from seedrl_jax.distributed import host_wire

# Seconds between attempts to reach host 0.
_RETRY_SECONDS = 0.1


class HostLost(RuntimeError):
  """Another host is gone; the message says which, why, and what to do."""


class HostsMismatch(ValueError):
  """The hosts were not started to work together; says what to change."""


def check_same(values: Sequence[Any], what: str) -> None:
  """Checks what all hosts must have in common.

  Args:
    values: of the hosts, by their index.
    what: says what a value is, with {} for it.

  Raises:
    HostsMismatch: where two differ.
  """
  for index, value in enumerate(values):
    if value != values[0]:
      raise HostsMismatch(
        f'Host {index} has {what.format(value)} and host 0 '
        f'{what.format(values[0])}; all hosts must be alike.'
      )


def lost_sentence(host: int, what: str) -> str:
  """Returns what the other hosts say of one that is gone."""
  return (
    f'Host {host} {what}; start all hosts again to resume from the last '
    'checkpoint.'
  )


class Agreement:
  """One host's end: votes, and word of hosts that stop or are gone."""

  def __init__(
    self,
    address: tuple[str, int],
    secret: str,
    index: int,
    count: int,
    join_timeout: float,
  ):
    """Connects to the `agreement_hub.Hub` of host 0.

    Args:
      address: of the hub.
      secret: the hub's.
      index: of this host.
      count: of all hosts, as this one was told.
      join_timeout: seconds to look for host 0.

    Raises:
      HostsMismatch: where host 0 is not found in that time.
    """
    self._changed = threading.Condition()
    self._round = 0
    # Of the vote that is going on, once it is over.
    self._results: list[list[Any]] = []
    self._lost = ''
    self._refused = False
    self._stop_wanted = False
    self._closing = False
    # However little time there is to join, a busy host 0 may hold its breath.
    self._silence = host_wire.Silence(max(join_timeout, host_wire.SEND_SECONDS))
    self._wire = host_wire.Wire(_connect(address, join_timeout))
    self._wire.send('hello', secret, index, count)
    self._threads = [
      threading.Thread(target=target, name=name, daemon=True)
      for name, target in (
        ('hosts-reader', self._read),
        ('hosts-beat', self._beat),
      )
    ]
    for thread in self._threads:
      thread.start()

  @property
  def lost(self) -> str:
    """The sentence about a host that is gone; '' while all are there."""
    return self._lost

  @property
  def stop_wanted(self) -> bool:
    """Whether some host asked all to stop."""
    return self._stop_wanted

  def set_timeout(self, timeout: float) -> None:
    """Takes host 0 for gone after `timeout` seconds of silence."""
    self._silence = host_wire.Silence(timeout)

  def gather(self, value: Any) -> list[Any]:
    """Waits until every host has called this; one thread of each does.

    Args:
      value: anything JSON can hold.

    Returns:
      The hosts' values, by their index.

    Raises:
      HostLost: where a host is gone.
      HostsMismatch: where host 0 does not take this one.
    """
    with self._changed:
      self._results.clear()
      self._round += 1
    self._wire.send('vote', self._round, value)
    with self._changed:
      self._changed.wait_for(lambda: self._lost or self._results)
      if self._results:
        return self._results[0]
    raise (HostsMismatch if self._refused else HostLost)(self._lost)

  def ask_to_stop(self) -> None:
    """Tells all hosts that this one wants to stop; returns at once."""
    self._wire.send('stop')

  def wait_lost(self, timeout: float) -> str:
    """Waits for word of a host that is gone; returns `lost`."""
    with self._changed:
      self._changed.wait_for(lambda: self._lost, timeout)
      return self._lost

  def announce_end(self, reason: str) -> None:
    """Ends this host's part, but for the connection, until the process ends.

    Host 0 waits for that before it ends itself.

    Args:
      reason: what the others will say of this host; '' at the agreed end.
    """
    with self._changed:
      if self._closing:
        return
      self._closing = True
      self._changed.notify_all()
    self._wire.send('leave', reason)

  def leave(self, reason: str = '') -> None:
    """Ends this host's part; see `announce_end` for `reason`."""
    self.announce_end(reason)
    self._wire.close()
    for thread in self._threads:
      thread.join(host_wire.SEND_SECONDS)

  def _read(self) -> None:
    while message := self._wire.receive():
      self._silence.heard()
      match message:
        case ['result', values]:
          with self._changed:
            self._results.append(values)
            self._changed.notify_all()
        case ['stop']:
          self._stop_wanted = True
        case ['lost', sentence]:
          self._lose(sentence)
        case ['refused', sentence]:
          self._refused = True
          self._lose(sentence)
    self._lose(lost_sentence(0, 'is gone (its connection was closed)'))

  def _beat(self) -> None:
    while not (self._closing or self._lost):
      self._wire.send('beat')
      silence = self._silence
      if silence.is_over():
        self._lose(
          lost_sentence(0, f'has said nothing for {silence.timeout:g} s')
        )
      with self._changed:
        self._changed.wait_for(
          lambda: self._closing or self._lost, silence.tick
        )

  def _lose(self, sentence: str) -> None:
    with self._changed:
      if not (self._lost or self._closing):
        self._lost = sentence
      self._changed.notify_all()


def _connect(address: tuple[str, int], timeout: float) -> socket.socket:
  """Connects to host 0, which may not be there yet."""
  deadline = time.monotonic() + timeout
  while True:
    try:
      connection = socket.create_connection(address, host_wire.SEND_SECONDS)
    except OSError as e:
      if time.monotonic() > deadline:
        raise HostsMismatch(
          f'--coordinator={address[0]}:{address[1]}: host 0 was not found '
          f'there for {timeout:g} s ({e}); start it with --process_id=0, or '
          'mend the address.'
        ) from e
      time.sleep(_RETRY_SECONDS)
      continue
    connection.settimeout(None)
    return connection
