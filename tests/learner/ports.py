"""Ports of this machine's loopback for tests."""

import socket


def free() -> int:
  """Returns a port that nobody listens on."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    return listener.getsockname()[1]
