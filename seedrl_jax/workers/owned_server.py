"""A parameter server whose shards are child processes of the first worker."""

import functools
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections

from seedrl_jax.actors import addresses, credentials
from seedrl_jax.hosts import coordinator
from seedrl_jax.runtime import file_io
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import (
  children,
  flat,
  server,
  shard,
  wire,
)


def check_addresses(config: ml_collections.ConfigDict) -> None:
  """Raises `ValueError` if the shards cannot have the configured addresses."""
  own = config.asynchronous
  found = [addresses.parse(shard.FLAG, text) for text in own.addresses]
  has_port = not any(address.text.endswith(':0') for address in found)
  if found and not (has_port and len({*found}) == len(found) == own.shards):
    raise ValueError(
      f'{shard.FLAG}={own.addresses}: give an address with a port, such as '
      f'localhost:7000, for each of --config.asynchronous.shards={own.shards}.'
    )
  security = credentials.learner_security(config.actors)
  addresses.check_listening(found, security, shard.FLAG)


class OwnedServer(server.ServerParameters):
  """Starts the shards, and starts them again if they die.

  Attributes:
    places: the shards' addresses.
  """

  def __init__(
    self,
    trainer: flat.FlatTrainer,
    board: board_lib.Board,
    config: ml_collections.ConfigDict,
    folder: pathlib.Path,
    processors: Sequence[int],
    say: Callable[[str], None],
  ):
    """Starts nothing; see `fill`.

    `folder` is for the shards' files and logs; they run on `processors`.
    """
    own = config.asynchronous
    # A path in the work directory may be too long for a socket.
    self._sockets = tempfile.TemporaryDirectory(prefix='seedrl-')
    numbers = range(own.shards)
    self.places: list[str] = list(own.addresses) or [
      f'unix:{self._sockets.name}/{i}.sock' for i in numbers
    ]
    super().__init__(trainer, board, config, self.places)
    self._files = [folder / f'{i}.npz' for i in numbers]
    self._trainer, self._folder = trainer, folder
    self._processors, self._say = processors, say
    self._children: list[children.Child] = []

  def fill(self, vectors: flat.Vectors) -> None:
    """Starts the shards with `vectors`; raises `WorkerFailed` if it cannot."""
    self._folder.mkdir(parents=True, exist_ok=True)
    version = self._board.version()
    # As a later save: the first start is like any other.
    for file, part in zip(self._files, self._slices, strict=True):
      state = wire.State(server.cut(vectors, part), version)
      file_io.write_whole(file, state.pack())
    self._children = [
      children.Child(
        f'shard-{i}',
        functools.partial(self._tell, i),
        (),
        self._folder / f'{i}.log',
        self._processors,
        functools.partial(self._on_death, i),
      )
      for i in range(len(self.places))
    ]
    for child in self._children:
      child.wait_ready()
    self.check()

  def _tell(self, index: int) -> dict[str, Any]:
    trainer = self._trainer.trainer
    return {
      'shard': index,
      'address': self.places[index],
      'file': str(self._files[index]),
      'target_update_period': trainer.target_update_period,
      'target_update_rate': trainer.target_update_rate,
    }

  def _on_death(self, index: int) -> None:
    self._say(f'Shard {index} has died; it is started again.')

  def check(self) -> None:
    for child in self._children:
      if child.failure:
        raise coordinator.WorkerFailed(child.failure)

  def close(self) -> None:
    """Ends the shards and removes their files; may be called again."""
    super().close()
    children.stop(self._children)
    self._sockets.cleanup()
    for file in self._files:
      file.unlink(missing_ok=True)
