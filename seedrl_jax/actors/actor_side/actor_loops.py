"""What an actor does once it has joined a learner: one of two loops.

`step_environments` carries steps to the learner and its actions back.
`follow_learner` sends reports and fetches parameters while a `LocalActor`, in a
thread of its own, acts without waiting for the learner. Neither needs JAX.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.actor_side import connection as connection_lib
from seedrl_jax.envs import local_stream


class IncompatibleLearner(ValueError):
  """An actor cannot serve a learner; says why to people on both sides."""


class LocalActor(Protocol):
  """Acts for a group's environments in this process."""

  def start(self) -> None:
    """Starts its thread."""

  def report(self) -> local_messages.Report:
    """Returns its progress since the last call.

    Raises:
      IncompatibleLearner: if it cannot act in this run.
      connection.PeerLost: if a server that it needs is not reachable.
      Exception: with which its thread failed.
    """

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    """Takes the leaves of newer acting parameters."""

  def wait(self) -> None:
    """Waits until it is time for a report: about an unroll, or a second."""

  def close(self) -> None:
    """Ends its thread and closes all that it opened."""


# Makes what acts for one stay with a learner; it closes the environments.
MakeLocalActor = Callable[
  [handshake.Welcome, local_stream.LocalStream], LocalActor
]


def step_environments(
  stream: local_stream.LocalStream,
  env_id: np.ndarray,
  connection: connection_lib.LearnerConnection,
) -> None:
  """Steps until the learner says that the training has ended.

  Args:
    stream: the environments.
    env_id: int32 `[N]`, the learner's ids of them.
    connection: to the learner.
  """
  codec = wire.StreamCodec(stream.spec)
  sequence = 0
  while True:
    output = stream.recv()
    connection.send(
      codec.pack_steps(
        output._replace(env_id=env_id[output.env_id]),
        local_messages.episode_columns(stream.take_episodes(), env_id),
        sequence,
      )
    )
    message = connection.receive()
    if message.kind == wire.MessageKind.END:
      return
    rows = len(output.env_id)
    stream.send(codec.unpack_actions(message, rows, sequence), output.env_id)
    sequence += 1


def follow_learner(
  local_actor: LocalActor,
  run: handshake.LocalRun,
  connection: connection_lib.LearnerConnection,
) -> None:
  """Sends reports and fetches parameters until the training has ended.

  Args:
    local_actor: not started yet; the caller closes it.
    run: from the handshake.
    connection: to the learner.

  Raises:
    Whatever `local_actor.report` and `connection.receive` do.
  """
  specs = tuple(run.parameters.values())
  local_actor.start()
  sequence = 0
  while True:
    connection.send(local_messages.pack_report(local_actor.report(), sequence))
    message = connection.receive()
    if message.kind == wire.MessageKind.END:
      return
    newer = local_messages.unpack_parameters(message, specs)
    if newer is not None:
      local_actor.take(*newer)
    local_actor.wait()
    sequence += 1
