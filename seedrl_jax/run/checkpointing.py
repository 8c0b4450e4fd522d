"""What a run keeps in its work directory to be continued from.

Used by `system`: the learner's checkpoints, the record of the run's counters,
and the replay's part, which belong to one moment. A large replay takes minutes
to write (Reverb compresses it in one thread, and serves on meanwhile), so a
thread of its own, `checkpoint`, may do that while the run goes on. The learner
waits only until the replay is settled on what it saves. That is, with Reverb,
when what was inserted has arrived and the server was asked: the environments,
which do not wait, may be milliseconds ahead.
"""

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import jax
import ml_collections
import numpy as np

from seedrl_jax.learner import state as state_lib
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import checkpoints as checkpoints_lib
from seedrl_jax.runtime import checkpoints, record
from seedrl_jax.runtime import workdir as workdir_lib

StateSource = Callable[[], state_lib.LearnerState]
RecordSource = Callable[[], record.RunRecord]


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
    leads: bool = True,
  ):
    """Opens the checkpoints of a work directory.

    Args:
      config: the run's configuration.
      workdir: where they are.
      say: takes sentences for the user.
      leads: whether this host keeps the checkpoints; one that does not has
        only its own replay here.

    Raises:
      WorkdirError: where the configuration does not fit them.
    """
    self.record = record.RunRecord()
    self._config = config.checkpoint
    self._workdir = workdir
    self._say = say
    self._replay: checkpoints_lib.ReplayCheckpoints | None = None
    self._thread: threading.Thread | None = None
    self._error: BaseException | None = None
    self._checkpoints: (
      checkpoints.Checkpoints | checkpoints.NumbersOfCheckpoints
    ) = checkpoints.NumbersOfCheckpoints(self._config.keep)
    if leads:
      self._checkpoints = checkpoints.Checkpoints(
        workdir.checkpoints,
        self._config.keep,
        self._config.keep_every_hours,
        say,
      )
    try:
      self._check_resumable(config)
    except BaseException:
      self.close()
      raise

  def _check_resumable(self, config: ml_collections.ConfigDict) -> None:
    old = self._read_config()
    if not self._checkpoints.steps():
      return
    if old is None:
      self._say(
        'No config.json says what the checkpoints were made with, so changes '
        'are not checked.'
      )
    elif changes := workdir_lib.check_resumable(old, config):
      self._say('Resuming with changes: ' + '; '.join(changes))

  def _read_config(self) -> ml_collections.ConfigDict | None:
    """Returns the earlier start's configuration; puts a damaged one aside."""
    path = self._workdir.config_json
    if not path.exists():
      return None
    try:
      return self._workdir.read_config()
    except workdir_lib.WorkdirError as e:
      self._say(f'{e} It is now {workdir_lib.put_aside(path).name}.')
      return None

  def restore(self, template: state_lib.LearnerState) -> state_lib.LearnerState:
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

  def told(self) -> dict[str, Any]:
    """Returns the record as JSON can hold it, for `follow` on other hosts."""
    return dataclasses.asdict(self.record)

  def follow(self, told: record.RunRecord, step: int) -> None:
    """Continues from the checkpoint that another host found.

    Args:
      told: its record.
      step: its number. The replay's part of this host has the same, if it
        was here when that was saved.
    """
    self.record = dataclasses.replace(told, inference_keys=[], replay='')
    if not told.replay:
      return
    if (self._workdir.replay / str(step)).exists():
      self.record.replay = str(step)
    else:
      self._say(
        f'The replay starts empty: there is none of checkpoint {step} in '
        f'{self._workdir.replay}.'
      )

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
    self._replay = checkpoints_lib.ReplayCheckpoints(
      store, self._workdir.replay, self._say
    )
    if not self.record.replay:
      return
    try:
      self._replay.restore(self.record.replay)
    except replay.CheckpointError as e:
      self._say(f'The replay starts empty: {e}')

  def save(self, state: StateSource, now: RecordSource) -> None:
    """Saves a checkpoint, after one that is being written.

    Does nothing where this update has one.

    Args:
      state: gives the learner's, on the host.
      now: gives the run's counters; called when the replay's contents are
        those that are saved, which fills in `replay`.

    Raises:
      NotWritten: this one, as on a full disk.
      BaseException: with which this one failed; or else, when this one is
        written, an earlier one that was not waited for.
    """
    earlier = self._join()
    taken = state()
    if int(taken.step) not in self._checkpoints.steps():
      self._write(taken, now)
    if earlier is not None:
      raise earlier

  def save_in_background(self, state: StateSource, now: RecordSource) -> None:
    """Saves a checkpoint in a thread; returns when no more can change it.

    Where an earlier one is still being written, a sentence says that this one
    is left out, and nothing is asked of `state`. One that cannot be written,
    as on a full disk, costs a sentence.

    Args:
      state, now: as in `save`; `now` is called in the thread.

    Raises:
      BaseException: with which an earlier one failed.
    """
    if self._thread is not None and self._thread.is_alive():
      self._say(
        'A checkpoint is left out, as the one before is still being written; '
        'save less often (--config.checkpoint.every_seconds).'
      )
      return
    self.finish()
    taken = state()
    if int(taken.step) in self._checkpoints.steps():
      return
    # The next update may write to the memory that these arrays are views of.
    copied = jax.tree.map(np.array, taken)
    settled = threading.Event()
    self._thread = threading.Thread(
      target=self._write_guarded,
      args=(copied, now, settled),
      name='checkpoint',
      daemon=True,
    )
    self._thread.start()
    settled.wait()

  def finish(self, timeout: float | None = None) -> None:
    """Waits for the checkpoint that is being written.

    Args:
      timeout: seconds after which it is left alone; None: as long as it takes.

    Raises:
      BaseException: with which it failed.
    """
    error = self._join(timeout)
    if error is not None:
      raise error

  def _join(self, timeout: float | None = None) -> BaseException | None:
    """Waits for the thread; returns, once, what it failed with."""
    if self._thread is not None and self._thread.is_alive():
      self._say('Waiting for the checkpoint that is being written.')
      self._thread.join(timeout)
    error, self._error = self._error, None
    return error

  def say_next_tries(self, error: workdir_lib.NotWritten) -> None:
    """Tells of a checkpoint that the run can do without."""
    self._say(f'{error} The next save tries again.')

  def _write_guarded(
    self,
    state: state_lib.LearnerState,
    now: RecordSource,
    settled: threading.Event,
  ) -> None:
    try:
      self._write(state, now, settled.set)
    except workdir_lib.NotWritten as e:
      self.say_next_tries(e)
    except BaseException as e:
      self._error = e
    finally:
      settled.set()

  def _write(
    self,
    state: state_lib.LearnerState,
    now: RecordSource,
    on_settled: Callable[[], None] = lambda: None,
  ) -> None:
    """Writes both parts; `on_settled` is called when both are decided on."""
    step = int(state.step)
    taken: list[record.RunRecord] = []

    def settle() -> None:
      taken.append(now())
      on_settled()

    # First: a learner's checkpoint that names it is then never without it.
    name = ''
    if self._replay is not None:
      name = self._replay.save(step, settle)
    if not taken:
      settle()
    # Of several, as a lost server was asked again, the last is the one.
    saved = dataclasses.replace(taken[-1], replay=name)
    try:
      self._checkpoints.save(step, state, dataclasses.asdict(saved))
    finally:
      if self._replay is not None:
        self._replay.prune(self._checkpoints.steps())

  def close(self) -> None:
    """Closes the checkpoints, after what is being written."""
    try:
      self.finish()
    finally:
      self._checkpoints.close()
