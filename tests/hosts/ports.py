"""Free ports of the loopback interface."""

import socket

# Held until this process ends, so that no other gets them.
_held: list[socket.socket] = []


def free() -> int:
  """Returns a port that nobody listens on; another process may listen there."""
  holder = socket.socket()
  # Lets another process listen there all the same.
  holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
  holder.bind(('127.0.0.1', 0))
  _held.append(holder)
  return holder.getsockname()[1]
