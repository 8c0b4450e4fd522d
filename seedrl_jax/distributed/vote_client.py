"""Votes among the hosts of a run, over a socket to host 0; needs no JAX.

The hosts vote on what they must do in the same order (an update, a checkpoint,
the end): so no device waits in a collective for a host that has no batch, has
stopped or has died.
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
  """Another host is gone; says which, why, and what to do."""


class HostsMismatch(ValueError):
  """The hosts were not started to work together; says what to change."""


def check_same(values: Sequence[Any], what: str) -> None:
  """Raises `HostsMismatch` if two values differ; `what` describes one."""
  for index, value in enumerate(values):
    if value != values[0]:
      raise HostsMismatch(
        f'Host {index} has {what.format(value)} and host 0 '
        f'{what.format(values[0])}; all hosts must be alike.'
      )


def lost_sentence(host: int, what: str) -> str:
  return (
    f'Host {host} {what}; start all hosts again to resume from the last '
    'checkpoint.'
  )


class VoteClient:
  """A host's connection to host 0's `VoteServer`.

  Attributes:
    lost: a sentence about a host that is gone; '' if all are there.
    stop_wanted: whether a host asked all to stop.
  """

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
    self.lost = ''
    self.stop_wanted = False
    self._changed = threading.Condition()
    # The present vote's result, once there is one.
    self._results: list[list[Any]] = []
    self._refused = False
    self._closing = False
    # A busy host 0 may be silent for longer than the time to join.
    self.set_timeout(max(join_timeout, host_wire.SEND_SECONDS))
    self._wire = host_wire.HostWire(_connect(address, join_timeout))
    self._wire.send('hello', secret, index, count)
    self._threads = [
      threading.Thread(target=self._read, name='hosts-reader', daemon=True),
      threading.Thread(target=self._beat, name='hosts-beat', daemon=True),
    ]
    for thread in self._threads:
      thread.start()

  def set_timeout(self, timeout: float) -> None:
    """Sets after how many seconds of silence host 0 counts as gone."""
    self._silence = host_wire.SilenceTimer(timeout)

  def gather(self, value: Any) -> list[Any]:
    """Returns the JSON values of all hosts by index, when all have called it.

    One thread of each host calls it.

    Raises:
      HostLost: if a host is gone.
      HostsMismatch: if host 0 does not accept this one.
    """
    self._results.clear()
    self._wire.send('vote', value)
    with self._changed:
      self._changed.wait_for(lambda: self.lost or self._results)
      if self._results:
        return self._results[0]
    raise (HostsMismatch if self._refused else HostLost)(self.lost)

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
          self.stop_wanted = True
        case [('lost' | 'refused') as kind, sentence]:
          self._refused = kind == 'refused'
          self._lose(sentence)
    self._lose(lost_sentence(0, 'is gone (its connection was closed)'))

  def _beat(self) -> None:
    while not (self._closing or self.lost):
      self._wire.send('beat')
      silence = self._silence
      if silence.is_over():
        what = f'has said nothing for {silence.timeout:g} s'
        self._lose(lost_sentence(0, what))
      with self._changed:
        self._changed.wait_for(lambda: self._closing or self.lost, silence.tick)

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
