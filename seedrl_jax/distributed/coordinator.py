"""What the hosts of a run decide together: start, stop, checkpoint, count.

A single host has the trivial `Coordinator`; `several_hosts` has the other.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import ml_collections

from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import state as state_lib
from seedrl_jax.runtime import threads


class Decision(NamedTuple):
  """What all hosts do next.

  Attributes:
    update: whether to update with the batch that this host has; else to stop.
    save: whether to save a checkpoint afterwards.
    progress: of the run, for the learning rate; the same on all hosts.
  """

  update: bool
  save: bool
  progress: float


# Takes whether this host has a batch, and whether a checkpoint is due.
Decide = Callable[[bool, bool], Decision]


class Figures(Protocol):
  """What a host counts, tells the others and hears of them."""

  def progress(self) -> float:
    """Returns the share of its frames that the run has, as far as is known."""

  def tell(self, is_last: bool = False) -> dict[str, Any]:
    """Returns this host's figures, which JSON can hold."""

  def hear(self, told: Sequence[Mapping[str, Any]]) -> float:
    """Takes all hosts' figures; returns the progress, alike on all hosts."""


class Coordinator:
  """Decides for a single host.

  Attributes:
    index: of this host; host 0 writes what is written once.
    count: hosts of the run.
    failures: sentences about other hosts that failed, after `end`.
    agreed: after `end`, whether all hosts have come to it, so that a last
      checkpoint can be saved.
  """

  index = 0
  count = 1
  failures: Sequence[str] = ()
  agreed = True

  @property
  def lost(self) -> str:
    """The sentence about a host that is gone; '' while all are there."""
    return ''

  def check_start(self, config: ml_collections.ConfigDict) -> None:
    """Checks that all hosts were started alike.

    Raises:
      HostsMismatch: if they were not.
    """

  def share(
    self, record: dict[str, Any], state: state_lib.LearnerState
  ) -> tuple[dict[str, Any], state_lib.LearnerState]:
    """Returns the record and state of host 0; no shared disk is needed."""
    return record, state

  def compile(
    self,
    connect: Callable[[], None],
    compile_update: Callable[[], None],
    wanted: bool,
  ) -> None:
    """Compiles the update on all hosts.

    Args:
      connect: lets the training devices of all hosts find each other.
      compile_update: compiles the update and runs it once.
      wanted: whether this host will update; others need it all the same.

    Raises:
      HostLost: if a host is gone.
    """
    if wanted:
      compile_update()

  @contextlib.contextmanager
  def deciding(
    self, learner: learner_lib.Learner, figures: Figures
  ) -> Iterator[Decide]:
    """Yields a function that decides what to do before each update.

    The updates run in this context: their errors then say which host is gone.

    Raises:
      HostLost: if a host is gone.
      ParametersDiffer: if the hosts' parameters do.
    """
    yield lambda ready, save_due: Decision(ready, save_due, figures.progress())

  def must_stop(self) -> bool:
    """Whether some host asked all to stop.

    Raises:
      HostLost: if a host is gone.
    """
    return False

  def ask_to_stop(self) -> None:
    """Tells all hosts that this one wants to stop."""

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
    """Waits until all hosts have saved what they have to.

    Raises:
      HostLost: if a host is gone.
    """

  def leave(self) -> None:
    """Ends this host's part after a run that has not failed."""

  def fail(self, reason: str, text: str) -> None:
    """Ends this host's part after a failure; ends the process if need be.

    Args:
      reason: for the other hosts, in one line.
      text: for standard error if the process ends.
    """
