"""Sockets between the processes of a run."""

import os
import socket
import struct
from collections.abc import Callable

import numpy as np

# Seconds after which a process that waits for another one looks around. It also
# shows that the process has not hung; see `children.wait_for_end`.
LOOK_SECONDS = 0.2


def transfer(
  call: Callable[[memoryview], int],
  array: np.ndarray,
  look: Callable[[], None] = lambda: None,
) -> None:
  """Transfers a whole array with a socket's `send` or `recv_into`.

  Calls `look` at each timeout of the socket.

  Raises:
    ConnectionError: if the other end is closed.
  """
  rest = array.reshape(-1).view(np.uint8).data
  while rest:
    try:
      count = call(rest)
    except TimeoutError:
      look()
      continue
    if not count:
      raise ConnectionResetError
    rest = rest[count:]


def is_same_user(connection: socket.socket) -> bool:
  """Whether the process at the other end is of this process's user."""
  ids = struct.Struct('3i')
  peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, ids.size)
  _, user, _ = ids.unpack(peer)
  return user == os.getuid()
