"""Messages of actors that act themselves: reports out, parameters in.

PARAMETERS has one row with the version and every leaf, in the order of the
handshake, or no row if there is nothing newer. A report is due about once an
unroll.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire

# The newest episodes are kept, which take a fifth of this size.
_MAX_EPISODES, MAX_REPORT_BYTES = 10_000, 1 << 20
_VERSION = types.ArraySpec((), np.dtype('<i4'))
_REPORT_COLUMNS = (
  _VERSION,
  types.ArraySpec((), np.dtype('<u4')),  # env_steps
  types.ArraySpec((), np.dtype('<f8')),  # store_wait
  types.ArraySpec((), np.dtype('<u8')),  # store_bytes
)


class Work(NamedTuple):
  """What an actor has done."""

  env_steps: int = 0  # transitions, without reset pseudo-steps
  store_wait: float = 0.0  # seconds in which the store took no unroll
  store_bytes: int = 0  # sent to Reverb


class Report(NamedTuple):
  """Progress since the previous report."""

  version: int  # of the actor's parameters, or `types.NO_VERSION`
  work: Work = Work()
  episodes: np.ndarray = wire.NO_EPISODES  # `[n]`, `base.EPISODE`


def pack_report(report: Report) -> bytes:
  """Returns the message, with the newest episodes."""
  head, episodes = [report.version, *report.work], report.episodes
  return wire.pack(head, _REPORT_COLUMNS, 1, episodes[-_MAX_EPISODES:])


def unpack_report(message: wire.Message) -> Report:
  """Unpacks a REPORT message; raises `WireError` if it is invalid."""
  if message.rows != 1:
    raise wire.WireError('REPORT must be of one row.')
  columns, episodes = wire.unpack(message, _REPORT_COLUMNS)
  version, *values = (column.item() for column in columns)
  work = Work(*values)
  # So that no sum of them is infinite.
  if not 0 <= work.store_wait <= wire.LARGEST:
    raise wire.WireError('A wait is not possible.')
  return Report(version, work, episodes)


# PARAMETERS without any.
NOTHING_NEWER = wire.pack([], [], rows=0)


class ParameterFeed:
  """Packs each version once, for all actors that ask for it."""

  def __init__(
    self,
    specs: Mapping[str, types.ArraySpec],
    latest: Callable[[], tuple[int, Sequence[Any]]],
  ):
    """Makes a feed of leaves with these specs, by name.

    `latest`, which any thread may call, returns the newest version and its
    leaves, or raises LookupError if there is none.
    """
    self.specs = specs
    self._latest = latest
    self._version = types.NO_VERSION
    self._message = b''

  def has_newer(self, than: int) -> bool:
    """Whether there are parameters of a higher version; never waits."""
    try:
      version, _ = self._latest()
    except LookupError:
      return False
    # Versions fall only if the learner restarts, and then actors join anew.
    return version > than

  def message(self) -> bytes:
    """Packs the newest parameters; only one thread may call it."""
    version, leaves = self._latest()
    if version != self._version:
      columns = _VERSION, *self.specs.values()
      self._message = wire.pack([version, *leaves], columns, rows=1)
      self._version = version
    return self._message


def unpack_parameters(
  message: wire.Message, specs: Iterable[types.ArraySpec]
) -> tuple[int, list[np.ndarray]] | None:
  """Returns version and leaves, None if nothing is newer; raises WireError."""
  if not message.rows:
    return None
  (version, *leaves), _ = wire.unpack(message, (_VERSION, *specs))
  return int(version[0]), [leaf[0] for leaf in leaves]
