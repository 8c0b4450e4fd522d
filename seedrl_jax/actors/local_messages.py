"""Messages of actors that act themselves: reports out, parameters in.

PARAMETERS has one row with every leaf, in the order of the handshake, or no row
if there is nothing newer. A report is due about once an unroll.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.envs import base

# The newest episodes are kept, which take a fifth of this size.
_MAX_EPISODES, MAX_REPORT_BYTES = 10_000, 1 << 20
_REPORT_COLUMNS = (
  types.ArraySpec((), np.dtype('<i4')),  # version
  types.ArraySpec((), np.dtype('<u4')),  # env_steps
  types.ArraySpec((), np.dtype('<f8')),  # store_wait
  types.ArraySpec((), np.dtype('<u8')),  # store_bytes
)


class Report(NamedTuple):
  """Progress since the previous report."""

  version: int  # of the actor's parameters, or `types.NO_VERSION`
  env_steps: int  # transitions, without reset pseudo-steps
  store_wait: float  # seconds in which the store took no unroll
  store_bytes: int  # sent to Reverb
  episodes: base.EndedEpisodes


class ReportTotals(NamedTuple):
  """Sums of reports; fields as in `Report`."""

  env_steps: int = 0
  store_wait: float = 0.0
  store_bytes: int = 0

  def plus(self, other: Report) -> 'ReportTotals':
    return ReportTotals(
      self.env_steps + other.env_steps,
      self.store_wait + other.store_wait,
      self.store_bytes + other.store_bytes,
    )


def pack_report(report: Report, sequence: int) -> bytes:
  """Returns the message; `sequence` counts a stream's reports from 0."""
  head = [np.array([value]) for value in report[:-1]]
  episodes = [column[-_MAX_EPISODES:] for column in report.episodes]
  return wire.pack(
    wire.MessageKind.REPORT,
    wire.buffers([*head, *episodes], (*_REPORT_COLUMNS, *wire.EPISODE_COLUMNS)),
    rows=1,
    episodes=len(episodes[0]),
    sequence=sequence,
  )


def unpack_report(message: wire.Message) -> Report:
  """Unpacks a REPORT message; raises `WireError` if it is invalid."""
  wire.expect(message, wire.MessageKind.REPORT)
  if message.rows != 1:
    raise wire.WireError('REPORT must be of one row.')
  columns = wire.EPISODE_COLUMNS, message.episodes
  head, episodes = wire.take(message.body, (_REPORT_COLUMNS, 1), columns)
  version, env_steps, store_wait, store_bytes = (c.item() for c in head)
  ended = base.EndedEpisodes(*episodes)
  return Report(version, env_steps, store_wait, store_bytes, ended)


def episode_columns(episodes: list[base.Episode]) -> base.EndedEpisodes:
  """Returns episodes as columns."""
  if not episodes:
    return NO_EPISODES
  columns = zip(*episodes, strict=True)
  return base.EndedEpisodes(*map(np.array, columns))


NO_EPISODES = base.EndedEpisodes(*[np.zeros(0)] * len(wire.EPISODE_COLUMNS))
# PARAMETERS without any.
NOTHING_NEWER = wire.pack(wire.MessageKind.PARAMETERS, [])


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
      arrays = [np.asarray(leaf)[None] for leaf in leaves]
      parts = wire.buffers(arrays, self.specs.values())
      self._message = wire.pack(
        wire.MessageKind.PARAMETERS, parts, rows=1, sequence=version
      )
      self._version = version
    return self._message


def unpack_parameters(
  message: wire.Message, specs: Iterable[types.ArraySpec]
) -> tuple[int, list[np.ndarray]] | None:
  """Returns version and leaves, None if nothing is newer; raises WireError."""
  wire.expect(message, wire.MessageKind.PARAMETERS)
  if not message.rows:
    return None
  (leaves,) = wire.take(message.body, (specs, 1))
  return message.sequence, [leaf[0] for leaf in leaves]
