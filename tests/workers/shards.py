"""A parameter server whose shards are in this process, to stop and to start."""

import contextlib
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax.actors import addresses, credentials
from seedrl_jax.agents import base, sgd
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import flat, server, wire
from seedrl_jax.workers import shard as shard_lib
from tests import runs
from tests.learner import toys

SIZE = 7
LEARNING_RATE = 0.125


def _loss(params, target_params, batch, key, progress):
  goal = jnp.arange(SIZE) + 0.5 * target_params['w']
  return 0.5 * jnp.sum((params['w'] - goal) ** 2), sgd.LossOutput({})


def gradient(params: np.ndarray, target: np.ndarray) -> np.ndarray:
  """Returns the gradient of the agent's loss."""
  return (params - np.arange(SIZE) - 0.5 * target).astype(np.float32)


def make_config(**values: Any) -> ml_collections.ConfigDict:
  """Returns a configuration; waits are for hangs only."""
  return runs.tiny(**{'asynchronous__patience': 600.0, **values})


def make_agent(config: ml_collections.ConfigDict) -> base.Agent:
  """Returns an agent whose target takes half of every second update."""
  return toys.make_agent(
    SIZE,
    loss=_loss,
    optimizer=sgd.make_optimizer(config),
    learning_rate=lambda progress: jnp.float32(LEARNING_RATE),
    target_update_period=2,
    target_update_rate=0.5,
  )


class Shards:
  """The shards, each behind its address."""

  def __init__(
    self,
    folder: pathlib.Path,
    config: ml_collections.ConfigDict,
    count: int = 1,
    version: int = 0,
  ):
    self.trainer = flat.FlatTrainer(make_agent(config))
    self.places = list(config.asynchronous.addresses) or [
      f'unix:{folder}/{i}.sock' for i in range(count)
    ]
    self._config, self._folder = config, folder
    state = self.trainer.trainer.init({'w': jnp.zeros(SIZE)})
    vectors = self.trainer.flatten(jax.device_get(state))
    for i, part in enumerate(server.slices(SIZE, len(self.places))):
      state = wire.State(server.cut(vectors, part), version)
      self._file(i).write_bytes(state.pack())
    self._open: dict[int, contextlib.ExitStack] = {}
    self.all: dict[int, shard_lib.Shard] = {}
    for i in range(len(self.places)):
      self.start(i)

  def _file(self, index: int) -> pathlib.Path:
    return self._folder / f'{index}.npz'

  def start(self, index: int) -> None:
    trainer, config = self.trainer.trainer, self._config
    self.all[index] = shard_lib.Shard(
      self._file(index),
      trainer.optimizer,
      trainer.target_update_period,
      trainer.target_update_rate,
      config.asynchronous.max_staleness,
    )
    opened = self._open[index] = contextlib.ExitStack()
    address = addresses.parse(shard_lib.FLAG, self.places[index])
    security = credentials.learner_security(config.actors)
    opened.enter_context(shard_lib.serving(self.all[index], address, security))

  def kill(self, index: int) -> None:
    """Stops a shard without a last save."""
    self._open.pop(index).close()
    del self.all[index]

  def close(self) -> None:
    for index in list(self._open):
      self.kill(index)

  def worker(
    self,
    board: board_lib.Board,
    config: ml_collections.ConfigDict | None = None,
    kind: type[server.ServerParameters] = server.ServerParameters,
  ) -> server.ServerParameters:
    return kind(self.trainer, board, config or self._config, self.places)
