"""An actor that acts itself: reports out, parameters in.

`actor` calls `follow` in a group's thread, so that what acts, a `Player` with a
thread of its own, never waits for the learner. Needs no JAX; the player that
has it is `seedrl_jax.actors.actor_side.local_inference`.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from seedrl_jax.actors import handshake, parameters, reports, wire
from seedrl_jax.actors.actor_side import call as call_lib
from seedrl_jax.envs import local_stream


class Misfit(ValueError):
  """An actor cannot act in a run; says why to people on both sides."""


class Player(Protocol):
  """Acts for a group's environments in this process."""

  def start(self) -> None:
    """Starts its thread."""

  def report(self) -> reports.Report:
    """Returns what it did since the last call.

    Raises:
      Misfit: where it cannot act in this run.
      call.Lost: where somebody that it needs is not there.
      Exception: that has ended it otherwise.
    """

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    """Takes newer parameters, leaves `[1, ...]`."""

  def wait(self) -> None:
    """Waits until it is time for a report: about an unroll, or a second."""

  def close(self) -> None:
    """Ends its thread and all that it opened."""


# Makes the player of a stay with a learner; it closes the environments.
MakePlayer = Callable[[handshake.Welcome, local_stream.LocalStream], Player]


def follow(
  player: Player, local: handshake.LocalRun, call: call_lib.Call
) -> bool:
  """Reports and fetches parameters until the training has ended.

  Args:
    player: not started yet; the caller closes it.
    local: from the handshake.
    call: to the learner.

  Returns:
    True.

  Raises:
    Whatever `player.report` and `call.hear` do.
  """
  specs = tuple(local.parameters.values())
  player.start()
  sequence = 0
  while True:
    call.say(reports.pack(player.report(), sequence))
    message = call.hear()
    if message.kind == wire.MessageKind.END:
      return True
    newer = parameters.unpack(message, specs)
    if newer is not None:
      player.take(*newer)
    player.wait()
    sequence += 1
