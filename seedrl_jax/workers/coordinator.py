"""Workers that train the same parameters, each in its own process.

The first worker is the run: it evaluates, reports and saves, and it starts the
others. Each worker acts in its own environments and computes gradients from its
own data. `shared` describes how they reach the parameters.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from seedrl_jax.agents import base
from seedrl_jax.hosts import coordinator
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.learner import update
from seedrl_jax.runtime import config_files, process, threads
from seedrl_jax.runtime import workdir as workdir_lib
from seedrl_jax.workers import board as board_lib
from seedrl_jax.workers import children as children_lib
from seedrl_jax.workers import server, shared
from seedrl_jax.workers import updater as updater_lib


def processors(index: int) -> list[int]:
  """Returns the processor of worker `index`."""
  return [process.PROCESSORS[index % len(process.PROCESSORS)]]


class AsynchronousWorkers(coordinator.Coordinator):
  """Coordinates one worker with the others; see the base class."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: workdir_lib.Workdir,
    worker_info: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
  ):
    """Starts nothing.

    `worker_info`: settings that the first worker sends to the others; None in
    the first worker.
    """
    # Acting and learning take turns on the worker's one processor. Only Reverb
    # needs threads.
    self._lock_step = (
      config.replay.backend != 'reverb' and not config.replay.address
    )
    self.index = worker_info['worker'] if worker_info else 0
    self.count = config.asynchronous.workers
    self._num_models = config.asynchronous.model_workers
    self._config, self._workdir = config, workdir
    self._worker_info, self._say = worker_info, say
    self._parameters: Any = None
    self._children: list[children_lib.Child] = []
    # Of a parameter server.
    self._shards: list[children_lib.Child] = []

  def check_start(self, config: ml_collections.ConfigDict) -> None:
    if self._worker_info is None:
      self._check_agent(config)
    else:
      first = self._worker_info['config']
      local = config_files.flat_config(config)
      free = {'replay.address', *config_files.reported(local)}
      for key in sorted((first.keys() | local.keys()) - free):
        if first.get(key) != local.get(key):
          raise coordinator.HostsMismatch(
            f'--config.{key}: the run has {first.get(key)} and this worker '
            f'{local.get(key)}; start all workers with one configuration.'
          )
    # For what is computed outside the updater, such as the optimiser's step.
    jax.config.update('jax_default_device', self._device())

  def _check_agent(self, config: ml_collections.ConfigDict) -> None:
    for key in 'normalize_pixels', 'popart':
      if config.network.get(key, False):
        raise ValueError(
          f'--config.network.{key}=True: asynchronous workers share '
          'gradients but no statistics; give False.'
        )
    if not self._num_models:
      return
    flag = f'--config.asynchronous.model_workers={self._num_models}: '
    if 'planning' not in config:
      raise ValueError(f'{flag}only dyna_q has a model; take none.')
    if self._num_models >= self.count:
      raise ValueError(
        f'{flag}none of {self.count} workers would act; give more '
        '--config.asynchronous.workers.'
      )
    if self._lock_step:
      raise ValueError(
        f'{flag}they learn from the replay of the others; take '
        '--config.replay.backend=reverb.'
      )

  def placement(self) -> placement_lib.Placement:
    has_environments = self.index < self.count - self._num_models
    settings = {}
    if self._num_models:
      settings['planning.role'] = 'act' if has_environments else 'model'
    return placement_lib.Placement(
      index=self.index,
      count=self.count,
      shares_batch=False,
      has_environments=has_environments,
      lock_step=self._lock_step,
      agent_settings=settings,
      devices=[self._device()],
      make_step=self._make_step,
    )

  def _device(self) -> jax.Device:
    local = jax.local_devices()
    return local[self.index % len(local)]

  def _make_step(
    self, agent: base.Agent, devices: Sequence[jax.Device]
  ) -> update.GradientStep:
    del devices
    self._step = updater_lib.AsynchronousStep(agent, self._config.asynchronous)
    return self._step

  def share(
    self, record: dict[str, Any], state: update.LearnerState
  ) -> tuple[dict[str, Any], update.LearnerState]:
    info, flat = self._worker_info, self._step.flat
    fds = info['fds'] if info else {}
    self._board = board_lib.Board(
      self.count,
      self.index,
      fds.get('board'),
      int(state.step),
      self._num_models,
    )
    self._parameters = self._open(fds)
    progress = 0.0
    if info is None:
      self._parameters.fill(flat.flatten(state.agent))
      for child in self._shards:
        child.wait_ready()
      self._check()
      if flat.trainer.keeps_progress:
        progress = float(state.agent.progress)
    else:
      record, progress = info['record'], info['progress']
    self._record, self._progress = record, progress
    self._step.attach(self._parameters, self._board, progress)
    version = self._board.version()
    agent = flat.unflatten(self._parameters.vectors(), version, progress)
    return record, state._replace(agent=agent, step=jnp.int32(version))

  def _open(self, fds: Mapping[str, int]) -> Any:
    trainer, settings = self._step.flat, self._config.asynchronous
    if settings.share == 'server':
      return server.ServerParameters(
        trainer, self._board, self._config, fds, self._check, self._start_shard
      )
    if settings.share == 'sync':
      return shared.SynchronousMemory(
        trainer, self._board, fds, self._ready, self.count, settings.patience
      )
    return shared.SharedMemory(
      trainer,
      self._board,
      fds,
      max_staleness=settings.max_staleness,
      statistics=settings.shared_statistics,
      lock=settings.share == 'lock',
    )

  def _start_shard(
    self, index: int, info: Mapping[str, Any], fds: Sequence[int]
  ) -> None:
    child = children_lib.Child(
      f'Shard {index}',
      lambda deaths: info,
      fds,
      self._workdir.path / f'shards/{index}.log',
      process.PROCESSORS,
      lambda: self._say(f'Shard {index} has died; it is started again.'),
      self._config.asynchronous.patience,
    )
    self._shards.append(child)

  def _ready(self) -> list[int]:
    """Returns the other workers that are ready, by index."""
    workers = enumerate(self._children, start=1)
    return [index for index, child in workers if child.is_ready]

  def compile(
    self,
    connect: Callable[[], None],
    compile_update: Callable[[], None],
    is_needed: bool,
    replay_address: str = '',
  ) -> None:
    if not is_needed:
      return
    if self._worker_info is None:
      self._start_others(replay_address)
    compile_update()
    if self._worker_info is not None:
      children_lib.set_ready(self._worker_info)
    for child in self._children:
      child.wait_ready()
    self._check()

  def _start_others(self, replay_address: str) -> None:
    fds = {'board': self._board.fd, **self._parameters.fds}
    info = {
      'fds': fds,
      'config': config_files.flat_config(self._config),
      'replay_address': replay_address,
    }

    def make_info(index: int, deaths: int) -> dict[str, Any]:
      # Each start has seeds of its own.
      record = {**self._record, 'starts': self._record['starts'] + deaths}
      now = {'worker': index, 'record': record, 'progress': self._progress}
      return info | now

    for index in range(1, self.count):
      self._children.append(
        children_lib.Child(
          f'Worker {index}',
          functools.partial(make_info, index),
          tuple(fds.values()),
          self._workdir.of_host(index).path / 'worker.log',
          processors(index),
          functools.partial(self._on_death, index),
          self._config.asynchronous.patience,
        )
      )

  def _on_death(self, index: int) -> None:
    self._board.restart(index)
    self._say(f'Worker {index} has died; it is started again.')

  @contextlib.contextmanager
  def deciding(
    self, learner: learner_lib.Learner, figures: coordinator.Figures
  ) -> Iterator[coordinator.Decide]:
    def decide(ready: bool, save_due: bool) -> coordinator.Decision:
      self._check()
      self._exchange(figures)
      return coordinator.Decision(
        ready and self._progress < 1.0,
        save_due and not self.index,
        self._progress,
      )

    yield decide

  def _exchange(self, figures: coordinator.Figures) -> None:
    self._board.write_figures(figures.local())
    self._progress = figures.merge(self._board.read_figures())

  def _check(self) -> None:
    """Raises `WorkerFailed` if the run must end."""
    for child in [*self._shards, *self._children]:
      if child.failure:
        # Nobody need wait for a shard any more.
        self._board.set_ended(has_failed=True)
        raise coordinator.WorkerFailed(child.failure)
    if self._board.has_failed():
      raise coordinator.WorkerFailed('The first worker has ended the run.')

  def must_stop(self) -> bool:
    self._check()
    return False

  def ask_to_stop(self) -> None:
    self._step.stop()
    if not self.index:
      self._board.set_ended()
    for child in self._children:
      child.terminate()

  def end(
    self,
    learner: learner_lib.Learner,
    figures: coordinator.Figures,
    failure: threads.Failure | None,
  ) -> None:
    if failure is None or failure.thread != 'learner':
      learner.flush()
    children_lib.stop(self._children)
    self._exchange(figures)

  def wait_saved(self) -> None:
    # The last checkpoint needed them.
    children_lib.stop(self._shards)

  leave = wait_saved

  def fail(self, reason: str, text: str) -> None:
    children_lib.stop(self._children)
    children_lib.stop(self._shards)
