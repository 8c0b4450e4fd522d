"""Ports of this machine's loopback for tests."""

import socket

# Until this process ends, so that nobody else is given one of them.
_held: list[socket.socket] = []


def free() -> int:
  """Returns a port that nobody listens on, for whoever is told of it."""
  holder = socket.socket()
  # A process that is told of it may listen there all the same.
  holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  holder.bind(('127.0.0.1', 0))
  _held.append(holder)
  return holder.getsockname()[1]
