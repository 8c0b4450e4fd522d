"""What a run does together with those of other hosts.

`system` has one of these where there are several hosts. They vote before each
update: whether each has a batch or wants to stop, whether host 0 wants a
checkpoint, how far each is. All hosts hear the same and so do the same.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from seedrl_jax.distributed import hosts as hosts_lib
from seedrl_jax.distributed import vote_client
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import prefetch as prefetch_lib
from seedrl_jax.learner import state as state_lib
from seedrl_jax.run import build, checkpointing, reporting
from seedrl_jax.runtime import record as record_lib
from seedrl_jax.runtime import workdir as workdir_lib

# Keys that hosts may differ in: what is only of a host's own place.
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
# Seconds in which it shows that an update failed because a host is gone.
_LOSS_SECONDS = 20.0


class ParametersDiffer(RuntimeError):
  """The hosts' parameters are no longer the same."""


# Says itself what it is.
_OWN_ERRORS = (
  ParametersDiffer,
  vote_client.HostLost,
  learner_lib.NonFiniteError,
)


class JointRun:
  """This host's part in a run of several hosts.

  Attributes:
    hosts: this one among them.
    failures: sentences about the others, after `end`.
    is_over: whether the hosts have agreed on the end.
  """

  def __init__(self, hosts: hosts_lib.Hosts, config: ml_collections.ConfigDict):
    """Checks that the hosts were started alike.

    Args:
      hosts: this host among the others.
      config: the run's configuration.

    Raises:
      Refused: where they were not.
    """
    self.hosts = hosts
    self._check_period: int = config.hosts.check_period
    self._check_alike(config)
    hosts.set_timeout(config.hosts.timeout)
    self._turn = 0
    self.failures: list[str] = []
    self.is_over = False

  def _check_alike(self, config: ml_collections.ConfigDict) -> None:
    if config.deterministic:
      raise vote_client.Refused(
        '--config.deterministic=True: not with several hosts; take one.'
      )
    told = self.hosts.gather({
      'devices': jax.local_device_count(),
      'config': workdir_lib.flat_config(config),
    })
    vote_client.check_same([host['devices'] for host in told], '{} devices')
    configs = [host['config'] for host in told]
    first = configs[0]
    for index, other in enumerate(configs):
      for key in sorted(first.keys() | other.keys()):
        a, b = first.get(key), other.get(key)
        if a != b and not key.startswith(_OWN_KEYS):
          raise vote_client.Refused(
            f'--config.{key}: host 0 has {a} and host {index} has {b}; start '
            'all hosts with one configuration.'
          )

  def share(
    self, state: state_lib.LearnerState, saved: checkpointing.SavedRun
  ) -> state_lib.LearnerState:
    """Starts every host from what host 0 found; no shared disk is needed.

    Args:
      state: that this host would start from; host 0's counts.
      saved: of this host; gets host 0's counters.
    """
    told = self.hosts.gather(saved.told())
    shared = self.hosts.broadcast(jax.tree.map(np.asarray, state))
    if not self.hosts.leads:
      saved.follow(record_lib.RunRecord(**told[0]), int(shared.step))
    return shared

  def compile(self, parts: build.Parts) -> None:
    """Compiles the update, and leaves what only starting needs.

    Raises:
      HostLost: where a host is gone.
    """
    self.hosts.gather('compile')
    with self._finding_loss():
      parts.updater.connect()
      parts.learner.compile(parts.blank_batch)
    self.hosts.detach()

  @contextlib.contextmanager
  def _finding_loss(self) -> Iterator[None]:
    """Has a collective's error say which host is gone, where one is."""
    try:
      yield
    except _OWN_ERRORS:
      raise
    except Exception as e:  # JAX has several for it, ValueError among them.
      if sentence := self.hosts.wait_lost(_LOSS_SECONDS):
        raise vote_client.HostLost(sentence) from e
      raise

  # -- learning ------------------------------------------------------------

  def learn(
    self,
    parts: build.Parts,
    reports: reporting.RunReports,
    is_checkpoint_due: Callable[[], bool],
    save: Callable[[], None],
    after_update: Callable[[], None],
  ) -> None:
    """Updates until the hosts agree to stop; the learner's thread runs it.

    Args:
      parts: of this host's run; its prefetcher is closed to stop.
      reports: which hear the other hosts' figures.
      is_checkpoint_due: whether it is time for one; host 0's answer counts.
      save: saves a checkpoint.
      after_update: is called after each.

    Raises:
      HostLost: where a host is gone.
      ParametersDiffer: where the hosts' parameters do.
      NonFiniteError: where an update was not finite.
    """
    learner = parts.learner
    try:
      with self._finding_loss():
        while item := _next_batch(parts):
          prints = self._fingerprints(learner)
          votes = self._vote(reports, prints, is_checkpoint_due())
          self._compare(votes, learner.counters.updates)
          progress = votes[0]['progress']
          if not all(v['ready'] for v in votes) or progress >= 1.0:
            item.sample.release()
            return
          if votes[0]['save']:
            save()
          learner.step(item, progress)
          after_update()
        self._vote(reports, None)
    except learner_lib.NonFiniteError:
      # The others find the same, or wait for this host's vote.
      self._vote(reports, None)
      raise

  def _vote(
    self,
    reports: reporting.RunReports,
    prints: list[int] | None,
    is_checkpoint_due: bool = False,
  ) -> list[dict[str, Any]]:
    """Returns the votes of all hosts.

    Args:
      reports: which tell this host's figures and hear the others'.
      prints: fingerprints to compare, if it is time to; None: this host has
        no batch, as it wants to stop.
      is_checkpoint_due: whether this host wants a checkpoint.
    """
    votes = self.hosts.gather({
      'ready': prints is not None,
      'save': is_checkpoint_due,
      'prints': prints,
      'figures': reports.tell(),
    })
    votes[0]['progress'] = reports.hear([v['figures'] for v in votes])
    return votes

  def _fingerprints(self, learner: learner_lib.Learner) -> list[int]:
    """Returns those of the parameters where they are to be compared."""
    self._turn += 1
    if (self._turn - 1) % self._check_period:
      return []
    return learner.fingerprints()

  def _compare(self, votes: Sequence[Mapping[str, Any]], update: int) -> None:
    # One that wants to stop has taken none.
    told = {i: v['prints'] for i, v in enumerate(votes) if v['prints']}
    expected = next(iter(told.values()), [0])[0]
    for index, prints in told.items():
      if any(x != expected for x in prints):
        raise ParametersDiffer(
          f'After update {update} the parameters of host {index} are not those '
          f'of host {min(told)}; start all hosts again to resume from the last '
          'checkpoint.'
        )

  # -- the end -------------------------------------------------------------

  def end(self, reports: reporting.RunReports, failure: str) -> None:
    """Hears the last figures of all hosts, and who failed.

    Args:
      reports: which hear them.
      failure: of this host; '' for none.

    Raises:
      HostLost: where a host is gone.
    """
    told = self.hosts.gather([reports.tell(is_last=True), failure])
    reports.hear([figures for figures, _ in told])
    self.failures = [
      vote_client.lost_sentence(index, f'has failed ({text})')
      for index, (_, text) in enumerate(told)
      if text and index != self.hosts.index
    ]
    self.is_over = True

  def part(self) -> None:
    """Waits until all hosts have saved what they have to.

    Raises:
      HostLost: where a host is gone.
    """
    self.hosts.gather('saved')


def _next_batch(parts: build.Parts) -> prefetch_lib.Prefetched | None:
  """Waits for a batch; None where this host is stopping."""
  if parts.prefetcher.is_empty:
    # See `System._learn`.
    parts.learner.flush()
  try:
    return parts.prefetcher.get()
  except prefetch_lib.PrefetchClosed:
    return None
