"""A parameter server whose shards are threads, and a look into processes."""

import json
import os
import pathlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax.agents import base, optimizers, sgd
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import children, flat, links, server
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
  """Returns a tiny configuration."""
  return runs.tiny(**values)


def make_agent(config: ml_collections.ConfigDict) -> base.Agent:
  """Returns an agent whose target takes half of every second update."""
  return toys.make_agent(
    SIZE,
    loss=_loss,
    optimizer=optimizers.make(config),
    learning_rate=lambda progress: jnp.float32(LEARNING_RATE),
    target_update_period=2,
    target_update_rate=0.5,
  )


def child_info(pid: int) -> dict[str, Any]:
  """Returns the settings that a process has from its parent."""
  text = pathlib.Path(f'/proc/{pid}/environ').read_text()
  variables = dict(x.split('=', 1) for x in text.split('\0') if '=' in x)
  return json.loads(variables[children.VARIABLE])


def board_row(pid: int) -> Any:
  """Returns the row of the board of a worker's process."""
  info = child_info(pid)
  fd = os.open(f'/proc/{pid}/fd/{info["fds"]["board"]}', os.O_RDWR)
  return board_lib.Board(2, info['worker'], fd).row


class Shards:
  """The shards, each with a thread in the place of its process.

  Attributes:
    all: those that live, by index.
    first: the first worker's parameters.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    board: board_lib.Board,
    check: Callable[[], None] = lambda: None,
  ):
    self.trainer = flat.FlatTrainer(make_agent(config))
    self._config, self._check = config, check
    self._infos: list[Mapping[str, Any]] = []
    self._stops: dict[int, Callable[[], None]] = {}
    self.all: dict[int, shard_lib.Shard] = {}
    self.first = self.worker(board, {})
    state = self.trainer.trainer.init({'w': jnp.zeros(SIZE)})
    self.first.fill(self.trainer.flatten(jax.device_get(state)))

  def worker(
    self, board: board_lib.Board, fds: Mapping[str, int] | None = None
  ) -> server.ServerParameters:
    """Returns the parameters of another worker, if `fds` is None."""
    if fds is None:
      fds = {name: os.dup(fd) for name, fd in self.first.fds.items()}
    return server.ServerParameters(
      self.trainer, board, self._config, fds, self._check, self._start
    )

  def _start(
    self, index: int, info: Mapping[str, Any], fds: Sequence[int]
  ) -> None:
    assert {*fds} == {*info['fds'].values()}
    self._infos.append(info)
    self.start(index)

  def start(self, index: int) -> None:
    info, optimizer = self._infos[index], self.trainer.trainer.optimizer
    settings, fds = self._config.asynchronous, info['fds']
    memory = shard_lib.make_memory(
      optimizer, settings.workers, **info['sizes'], fd=fds[f'memory-{index}']
    )
    events = [
      links.ProcessEvent(fds[f'worker-event-{i}'])
      for i in range(settings.workers)
    ]
    shard = shard_lib.Shard(
      memory.arrays,
      optimizer,
      links.ProcessEvent(fds[f'event-{index}']),
      events,
      **info['target'],
      max_staleness=settings.max_staleness,
    )
    ended = threading.Event()

    def run() -> None:
      while not ended.is_set():
        shard.serve()

    thread = threading.Thread(target=run)

    def stop() -> None:
      ended.set()
      thread.join()

    thread.start()
    self.all[index], self._stops[index] = shard, stop

  def kill(self, index: int) -> None:
    """Stops a shard."""
    del self.all[index]
    self._stops.pop(index)()

  def close(self) -> None:
    for index in list(self.all):
      self.kill(index)
