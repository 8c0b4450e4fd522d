"""Coordinates a run of several hosts by votes before each update."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import jax
import ml_collections
import numpy as np
from jax.experimental import multihost_utils

from seedrl_jax.hosts import coordinator
from seedrl_jax.hosts import votes as votes_lib
from seedrl_jax.learner import fingerprints, update
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.runtime import config_files, process, threads

# Keys, or prefixes of keys, in which hosts may differ.
_OWN_KEYS = (
  'actors.addresses',
  'actors.tls_certificate',
  'actors.tls_key',
  'actors.token_file',
  'demonstrations.path',
  'env.num_threads',
  'env.thread_affinity_offset',
  'replay.address',
  'topology.inference_affinity_offset',
)
# Seconds to wait, after an update has failed, for news of a lost host.
_LOSS_SECONDS = 20.0
# Seconds that a process has to end by itself after another host is gone.
_GRACE_SECONDS = 30.0
# Errors that need no further explanation.
_OWN_ERRORS = (
  coordinator.ParametersDiffer,
  coordinator.HostLost,
  learner_lib.NonFiniteError,
)


class SeveralHosts(coordinator.Coordinator):
  """Coordinates this host with others; see the base class for the methods."""

  def __init__(
    self,
    index: int,
    count: int,
    votes: votes_lib.VoteClient,
    server: votes_lib.VoteServer | None,  # of host 0
  ):
    self.index, self.count = index, count
    self.failures = []
    self.agreed = False
    self._votes = votes
    self._server = server
    self._check_period = 1
    self._turn = 0  # updates so far
    self._ended = threading.Event()

  def watch(self) -> Self:
    """Starts a thread that ends a process that a collective holds."""
    threading.Thread(
      target=self._end_in_time, name='hosts-guard', daemon=True
    ).start()
    return self

  def _end_in_time(self) -> None:
    """Exits if the process does not end soon after a host is gone."""
    while not self._ended.is_set():
      if self._votes.wait_lost(1.0) and not self._ended.wait(_GRACE_SECONDS):
        process.exit_now(self.lost)

  @property
  def lost(self) -> str:
    return self._votes.lost

  def check_start(self, config: ml_collections.ConfigDict) -> None:
    if config.deterministic:
      raise coordinator.HostsMismatch(
        '--config.deterministic=True: not with several hosts; take one.'
      )
    answers = self._votes.gather({
      'devices': jax.local_device_count(),
      'config': config_files.flat_config(config),
    })
    check_same([host['devices'] for host in answers], '{} devices')
    configs = [host['config'] for host in answers]
    for key in sorted(set().union(*configs)):
      if not key.startswith(_OWN_KEYS):
        check_same([x.get(key) for x in configs], f'--config.{key}={{}}')
    if self._server is not None:
      self._server.set_timeout(config.hosts.timeout)
    self._votes.set_timeout(config.hosts.timeout)
    self._check_period = config.hosts.check_period

  def share(
    self, record: dict[str, Any], state: update.LearnerState
  ) -> tuple[dict[str, Any], update.LearnerState]:
    records = self._votes.gather(record)
    state = jax.tree.map(np.asarray, state)
    return records[0], multihost_utils.broadcast_one_to_all(state)

  def compile(
    self,
    connect: Callable[[], None],
    compile_update: Callable[[], None],
    is_needed: bool,
    replay_address: str = '',
  ) -> None:
    del is_needed, replay_address
    self._votes.gather('compile')
    with self._finding_loss():
      connect()
      compile_update()
    # JAX's service would abort this process when host 0 is gone; what ran once
    # runs on without it. Host 0 stays in it, as checkpoints need it.
    self._votes.gather('detach')
    if self.index:
      jax.distributed.shutdown()

  @contextlib.contextmanager
  def _finding_loss(self) -> Iterator[None]:
    """Turns a collective's error into `HostLost` if a host is gone."""
    try:
      yield
    except _OWN_ERRORS:
      raise
    except Exception as e:  # JAX raises several kinds, `ValueError` among them.
      if sentence := self._votes.wait_lost(_LOSS_SECONDS):
        raise coordinator.HostLost(sentence) from e
      raise

  @contextlib.contextmanager
  def deciding(
    self, learner: learner_lib.Learner, figures: coordinator.Figures
  ) -> Iterator[coordinator.Decide]:
    def decide(ready: bool, save_due: bool) -> coordinator.Decision:
      prints = []
      if ready:
        if self._turn % self._check_period == 0:
          prints = learner.fingerprints()
        self._turn += 1
      votes, progress = self._vote(figures, ready, save_due, prints)
      check_fingerprints([v['prints'] for v in votes], learner.counters.updates)
      return coordinator.Decision(
        update=all(v['ready'] for v in votes) and progress < 1.0,
        save=votes[0]['save'],
        progress=progress,
      )

    try:
      with self._finding_loss():
        yield decide
    except learner_lib.NonFiniteError:
      # The others find the same, or wait for this host's vote.
      self._vote(figures)
      raise

  def _vote(
    self,
    figures: coordinator.Figures,
    ready: bool = False,
    save_due: bool = False,
    prints: Sequence[Sequence[float]] = (),
  ) -> tuple[list[dict[str, Any]], float]:
    """Returns the votes of all hosts and the run's progress."""
    votes = self._votes.gather({
      'ready': ready,
      'save': save_due,
      'prints': prints,
      'figures': figures.local(),
    })
    return votes, figures.merge([v['figures'] for v in votes])

  def must_stop(self) -> bool:
    if self.lost:
      raise coordinator.HostLost(self.lost)
    return self._votes.stop_wanted

  def ask_to_stop(self) -> None:
    self._votes.ask_to_stop()

  def end(
    self,
    learner: learner_lib.Learner,
    figures: coordinator.Figures,
    failure: threads.Failure | None,
  ) -> None:
    if self.lost:
      return
    if failure is None or failure.thread != 'learner':
      # A last update that was not finite raises here on every host.
      learner.flush()
    elif not isinstance(failure.error, learner_lib.NonFiniteError):
      return
    reason = ''
    if failure is not None:
      reason = f'{type(failure.error).__name__}: {failure.error}'
    answers = self._votes.gather([figures.local(), reason])
    figures.merge([host_figures for host_figures, _ in answers])
    self.failures = [
      votes_lib.lost_sentence(index, f'has failed ({text})')
      for index, (_, text) in enumerate(answers)
      if text and index != self.index
    ]
    self.agreed = True

  def wait_saved(self) -> None:
    if self.agreed:
      self._votes.gather('saved')

  def leave(self, reason: str = '') -> None:
    self._ended.set()
    self._votes.leave(reason)
    if self._server is not None:
      self._server.close()

  def fail(self, reason: str, text: str) -> NoReturn:
    # The others know of a lost host themselves.
    reason = '' if self.lost else reason.partition('\n')[0]
    if self.index == 0:
      self.leave(reason)
    else:
      # JAX aborts this process if host 0's ends first.
      self._votes.announce_end(reason)
    # A normal exit would wait for threads that are held in a collective.
    process.exit_now(text)


def check_same(values: Sequence[Any], what: str) -> None:
  """Raises `HostsMismatch` if two values differ; `what` describes one."""
  for index, value in enumerate(values):
    if value != values[0]:
      raise coordinator.HostsMismatch(
        f'Host {index} has {what.format(value)} and host 0 '
        f'{what.format(values[0])}; all hosts must be alike.'
      )


def check_fingerprints(
  prints: Sequence[Sequence[Sequence[float]]], num_updates: int
) -> None:
  """Raises `ParametersDiffer` if the fingerprints of hosts and devices differ.

  They are compared only if each host has sent some.
  """
  for index, rows in enumerate(prints if all(prints) else []):
    if not all(fingerprints.are_alike(row, prints[0][0]) for row in rows):
      raise coordinator.ParametersDiffer(
        f'After update {num_updates} the parameters of host {index} are not '
        'those of host 0; start all hosts again to resume from the last '
        'checkpoint.'
      )
