"""Messages with parameters for actors that act themselves.

A message with one row holds every leaf as it is published, in the order of the
handshake; one without rows says that there is nothing newer.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire

# Gives the newest version and its leaves; LookupError if nothing was published
# yet.
Read = Callable[[], tuple[int, Sequence[Any]]]

NOTHING_NEWER = wire.pack(wire.MessageKind.PARAMETERS, [])


class ParameterFeed:
  """Makes each version's message once, for all actors that ask for it."""

  def __init__(self, specs: Mapping[str, types.ArraySpec], read: Read):
    """Makes no message before an actor asks.

    Args:
      specs: of the leaves by name.
      read: gives the newest parameters; any thread may call it.
    """
    self.specs = specs
    self._read = read
    self._lock = threading.Lock()
    self._version = types.NO_VERSION
    self._message = NOTHING_NEWER

  def has_newer(self, than: int) -> bool:
    """Whether there are parameters of a higher version; never waits."""
    try:
      version, _ = self._read()
    except LookupError:
      return False
    # A learner that lost its last versions begins again with lower ones, but
    # its actors have then joined anew.
    return version > than

  def message(self) -> bytes:
    """Returns a message of the newest parameters.

    Copies them from their device first, while other callers wait.
    """
    with self._lock:
      version, leaves = self._read()
      if version != self._version:
        # One row.
        arrays = [np.asarray(leaf)[None] for leaf in leaves]
        self._message = wire.pack(
          wire.MessageKind.PARAMETERS,
          wire.buffers(arrays, self.specs.values()),
          rows=1,
          sequence=version,
        )
        self._version = version
      return self._message


def unpack(
  message: wire.Message, specs: Iterable[types.ArraySpec]
) -> tuple[int, list[np.ndarray]] | None:
  """Returns version and leaves; None if there is nothing newer.

  Raises:
    wire.WireError: if it is another message, or of other parameters.
  """
  wire.expect(message, wire.MessageKind.PARAMETERS)
  if not message.rows:
    return None
  (leaves,) = wire.take(message.body, (specs, 1))
  return message.sequence, [leaf[0] for leaf in leaves]
