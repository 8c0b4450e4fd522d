"""The two loops of an actor that has joined a learner; neither needs JAX."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.actor_side import connection as connection_lib
from seedrl_jax.envs import base


class IncompatibleLearner(ValueError):
  """An actor cannot serve a learner; says why."""


class LocalActor(Protocol):
  """Acts for a group's environments in this process."""

  def start(self) -> None:
    """Starts its thread."""

  def report(self) -> local_messages.Report:
    """Returns the progress since the last call.

    Raises:
      IncompatibleLearner: if it cannot act in this run.
      connection.PeerLost: if a server that it needs is not reachable.
      Exception: if its thread failed.
    """

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    """Takes the leaves of newer acting parameters."""

  def wait(self) -> None:
    """Waits until a report is due: about an unroll, or a second."""

  def close(self) -> None:
    """Ends its thread and closes what it opened, the environments too."""


# Makes the actor for one connection to a learner; it closes the environments.
MakeLocalActor = Callable[[handshake.Welcome, base.LocalStream], LocalActor]


def step_environments(
  stream: base.LocalStream,
  env_id: np.ndarray,
  connection: connection_lib.LearnerConnection,
) -> None:
  """Sends steps and applies the learner's actions until the training ends.

  `env_id`, int32 `[N]`, are the learner's ids of the environments.
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
  """Sends reports and fetches parameters until the training ends.

  Starts `local_actor`, which acts in a thread of its own. Raises what
  `local_actor.report` and `connection.receive` raise.
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
