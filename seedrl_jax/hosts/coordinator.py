"""What the hosts of a run decide together: start, stop, checkpoint, count."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import ml_collections

from seedrl_jax import types
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import placement, update
from seedrl_jax.runtime import threads


class HostLost(types.Explained, RuntimeError):
  """Another host is gone; says which, why, and what to do."""


class HostsMismatch(ValueError):
  """The hosts were not started to work together; says what to change."""


class ParametersDiffer(types.Explained, RuntimeError):
  """The hosts' parameters are no longer the same."""


class WorkerFailed(types.Explained, RuntimeError):
  """Another worker of the run cannot be started again; says why."""


class Decision(NamedTuple):
  """What all hosts do next."""

  update: bool  # with this host's batch; otherwise to stop
  save: bool  # a checkpoint afterwards
  progress: float  # of the run, the same on all hosts


# Takes whether this host has a batch, and whether a checkpoint is due.
Decide = Callable[[bool, bool], Decision]


class Figures(Protocol):
  """The counts that hosts exchange."""

  def progress(self) -> float:
    """Returns the known share of its frames that the run has."""

  def local(self) -> dict[str, Any]:
    """Returns this host's figures as JSON values."""

  def merge(self, figures: Sequence[Mapping[str, Any]]) -> float:
    """Takes all hosts' figures; returns the progress, the same on all."""


class Coordinator:
  """Coordinates a single host; the base class of `SeveralHosts`."""

  index = 0  # of this host; host 0 writes what is written once
  count = 1  # number of hosts
  # After `end`: sentences about other hosts that failed, and whether all hosts
  # can save a last checkpoint.
  failures: Sequence[str] = ()
  agreed = True

  @property
  def lost(self) -> str:
    """A sentence about a host that is gone; '' if all are there."""
    return ''

  def check_start(self, config: ml_collections.ConfigDict) -> None:
    """Raises `HostsMismatch` if the hosts were not all started alike."""

  def placement(self) -> placement.Placement:
    """Returns this host's share of the run; call it after `check_start`."""
    return placement.Placement(self.index, self.count)

  def share(
    self, record: dict[str, Any], state: update.LearnerState
  ) -> tuple[dict[str, Any], update.LearnerState]:
    """Returns the record and state of host 0; needs no shared disk."""
    return record, state

  def compile(
    self,
    connect: Callable[[], None],  # joins all training devices
    compile_update: Callable[[], None],  # on this host
    is_needed: bool,  # whether this host updates; several compile in any case
    replay_address: str = '',  # of the store's server, if it has one
  ) -> None:
    """Compiles the update on all hosts; raises `HostLost` if one is gone."""
    if is_needed:
      compile_update()

  @contextlib.contextmanager
  def deciding(
    self, learner: learner_lib.Learner, figures: Figures
  ) -> Iterator[Decide]:
    """Yields what decides before each update; updates run in this context.

    Errors in it then say which host is gone.

    Raises:
      HostLost: if a host is gone.
      ParametersDiffer: if the hosts' parameters differ.
    """
    yield lambda ready, save_due: Decision(ready, save_due, figures.progress())

  def must_stop(self) -> bool:
    """Whether a host asked all to stop; raises `HostLost` if one is gone."""
    return False

  def ask_to_stop(self) -> None:
    """Asks all hosts to stop."""

  def end(
    self,
    learner: learner_lib.Learner,
    figures: Figures,
    failure: threads.Failure | None,
  ) -> None:
    """Exchanges the last figures and `failure`, if this host still can.

    Raises:
      HostLost: if a host is gone.
      NonFiniteError: if the last update was not finite.
    """

  def wait_saved(self) -> None:
    """Waits until all hosts have saved; raises `HostLost` if one is gone."""

  def leave(self) -> None:
    """Ends this host's part after a run that has not failed."""

  def fail(self, reason: str, text: str) -> None:
    """Tells other hosts `reason` and the user `text`; may end the process."""
