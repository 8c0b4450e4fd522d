"""What a run keeps in its work directory to be continued from.

Used by `system`: the learner's checkpoints, the record of the run's counters,
and the replay's part, which belong to one moment. A large replay takes minutes
to write (Reverb compresses it in one thread, and serves on meanwhile), so a
thread of its own, `checkpoint`, may do that while the run goes on.
"""

import dataclasses
import threading
from collections.abc import Callable

import jax
import ml_collections
import numpy as np

from seedrl_jax.learner import update
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import saving
from seedrl_jax.runtime import checkpoints, record
from seedrl_jax.runtime import workdir as workdir_lib


class SavedRun:
  """Checkpoints of a run.

  Attributes:
    record: of the checkpoint that the run continues from; all zero where it
      begins.
  """

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: workdir_lib.Workdir,
    say: Callable[[str], None],
  ):
    """Opens the checkpoints of a work directory.

    Args:
      config: the run's configuration.
      workdir: where they are.
      say: takes sentences for the user.

    Raises:
      WorkdirError: where the configuration does not fit them.
    """
    self.record = record.RunRecord()
    self._config = config.checkpoint
    self._workdir = workdir
    self._say = say
    self._replay: saving.ReplayCheckpoints | None = None
    self._thread: threading.Thread | None = None
    self._error: BaseException | None = None
    self._checkpoints = checkpoints.Checkpoints(
      workdir.checkpoints, self._config.keep, self._config.keep_every_hours, say
    )
    try:
      self._check_resumable(config)
    except BaseException:
      self.close()
      raise

  def _check_resumable(self, config: ml_collections.ConfigDict) -> None:
    if not self._checkpoints.steps():
      return
    changes = workdir_lib.check_resumable(self._workdir.read_config(), config)
    if changes:
      self._say('Resuming with changes: ' + '; '.join(changes))

  def restore(self, template: update.LearnerState) -> update.LearnerState:
    """Returns the state to continue from, `template` where there is none.

    Raises:
      WorkdirError: where there are checkpoints and none is sound.
      CheckpointMismatch: where the state is of another kind.
    """
    some = bool(self._checkpoints.steps())
    found = self._checkpoints.restore(template)
    if found is None:
      if some:
        # To begin anew would overwrite the curves of the run that was here.
        raise workdir_lib.WorkdirError(
          f'No checkpoint in --workdir={self._workdir.path} is sound; start '
          'with another.'
        )
      return template
    self.record = record.RunRecord(**found.record)
    self._say(
      f'Resuming from checkpoint {found.step}: {self.record.env_steps} '
      f'environment steps and {self.record.seconds:.0f} s so far.'
    )
    return found.state

  @property
  def replay_path(self) -> str | None:
    """What `restore_replay` will bring back; None for nothing.

    Known from `restore` on, so that a store can begin with it.
    """
    if not (self._config.replay and self.record.replay):
      return None
    return str(self._workdir.replay / self.record.replay)

  def restore_replay(self, store: replay.TrajectoryStore) -> None:
    """Brings back what `store` held, and saves it from now on.

    A replay that cannot be read costs a sentence: what was learned is worth
    more.
    """
    if not self._config.replay:
      return
    self._replay = saving.ReplayCheckpoints(
      store, self._workdir.replay, self._say
    )
    if not self.record.replay:
      return
    try:
      self._replay.restore(self.record.replay)
    except replay.CheckpointError as e:
      self._say(f'The replay starts empty: {e}')

  def save(
    self,
    state: update.LearnerState,
    now: record.RunRecord,
    wait: bool = True,
  ) -> None:
    """Saves a checkpoint; does nothing where this update has one.

    Args:
      state: of the learner, on the host.
      now: the run's counters; its `replay` is filled in.
      wait: whether to return when it is written, an earlier one included.
        Otherwise the thread begins to write, and where it is not done with an
        earlier one, a sentence says that this one is left out.

    Raises:
      BaseException: with which this one failed, or an earlier one that was not
        waited for.
    """
    if self._thread is not None and self._thread.is_alive():
      if not wait:
        self._say(
          f'Checkpoint {int(state.step)} is left out, as the one before is '
          'still being written; save less often '
          '(--config.checkpoint.every_seconds).'
        )
        return
      self._say('Waiting for the checkpoint that is being written.')
    self.finish()
    if int(state.step) in self._checkpoints.steps():
      return
    if wait:
      self._write(state, now)
      return
    # The next update may write to the memory that these arrays are views of.
    copied = jax.tree.map(np.array, state)
    self._thread = threading.Thread(
      target=self._write_guarded,
      args=(copied, now),
      name='checkpoint',
      daemon=True,
    )
    self._thread.start()

  def finish(self) -> None:
    """Waits until nothing is being written.

    Raises:
      BaseException: with which a checkpoint failed that was not waited for.
    """
    if self._thread is not None:
      self._thread.join()
      self._thread = None
    error, self._error = self._error, None
    if error is not None:
      raise error

  def _write_guarded(
    self, state: update.LearnerState, now: record.RunRecord
  ) -> None:
    try:
      self._write(state, now)
    except BaseException as e:
      self._error = e

  def _write(self, state: update.LearnerState, now: record.RunRecord) -> None:
    step = int(state.step)
    # First: a learner's checkpoint that names it is then never without it.
    if self._replay is not None:
      now = dataclasses.replace(now, replay=self._replay.save(step))
    self._checkpoints.save(step, state, dataclasses.asdict(now))
    if self._replay is not None:
      self._replay.prune(self._checkpoints.steps())

  def close(self) -> None:
    """Closes the checkpoints, after what is being written."""
    try:
      self.finish()
    finally:
      self._checkpoints.close()
