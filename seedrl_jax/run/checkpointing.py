"""The checkpoints of a run: state, counters and replay of one moment.

Reverb takes minutes to write a large replay, so a thread does that. The learner
only waits until the replay is settled on what it saves. The environments do not
wait and may be milliseconds ahead.
"""

import dataclasses
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import ml_collections
import numpy as np

from seedrl_jax.configs import base as base_config
from seedrl_jax.learner import update
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import checkpoints as checkpoints_lib
from seedrl_jax.run import saved_config
from seedrl_jax.runtime import checkpoints, config_files, file_io, report
from seedrl_jax.runtime import workdir as workdir_lib

StateSource = Callable[[], update.LearnerState]
RecordSource = Callable[[], report.RunRecord]


# Fields of agents' states that count, and the optimiser's.
_COUNTERS, _OPTIMIZER = ('step', 'progress'), 'opt_state'
# Keys and sections that the parameters' shapes depend on.
_SHAPING = ('agent', 'env.id', 'env.stack_num', 'network.', 'normalization.')


def warm_start(
  initial: update.LearnerState,
  config: ml_collections.ConfigDict,
  source: str | os.PathLike[str],
  has_optimizer: bool,
  say: Callable[[str], None],
) -> update.LearnerState:
  """Returns a new run's state with the parameters of another run.

  Takes all that its agent has learned, target networks and statistics of
  observations included; of the optimiser only if it `has_optimizer`. Raises
  ValueError if `source` holds no checkpoint, or shapes differ.
  """
  directory = workdir_lib.Workdir(source, '--init_from')
  storage = checkpoints.Checkpoints(
    directory.checkpoints, report=say, read_only=True
  )
  without = _COUNTERS if has_optimizer else (*_COUNTERS, _OPTIMIZER)
  try:
    checkpoint = storage.restore(initial.agent, 'agent', without=without)
  except checkpoints.CheckpointMismatch as e:
    old = directory.read_config(base_config.SAVED)
    before, after = map(config_files.flat_config, (old, config))
    both = (before.keys() & after.keys()) - config_files.reported(after)
    texts = [
      f'{key} is {before[key]} there and {after[key]} here'
      for key in sorted(both)
      if key.startswith(_SHAPING) and before[key] != after[key]
    ]
    texts.append(str(e).partition('. Use ')[0])
    raise ValueError(
      f'--init_from={source}: {"; ".join(texts)}; take the same agent, '
      'network, normalization and spaces, or start without it.'
    ) from e
  if checkpoint is None:
    raise ValueError(
      f'--init_from={source}: holds no checkpoint; name the work directory of '
      'a run that has one.'
    )
  say(
    f'Starting from what checkpoint {checkpoint.step} in {source} has learned.'
  )
  return initial._replace(agent=checkpoint.state)


@dataclasses.dataclass
class RunCheckpoints:
  """The checkpoints of a work directory.

  `record` is that of the checkpoint to continue from; all zero for a new run.
  Raises WorkdirError if the checkpoints are not of `config`. Only the host that
  `leads` keeps more than its own replay.
  """

  config: ml_collections.ConfigDict
  workdir: workdir_lib.Workdir
  say: Callable[[str], None]
  leads: bool = True

  def __post_init__(self) -> None:
    self.record = report.RunRecord()
    keys = self.config.checkpoint
    storage_type = checkpoints.Checkpoints
    if not self.leads:
      storage_type = checkpoints.NumbersOfCheckpoints
    self.storage = storage_type(
      self.workdir.checkpoints, keys.keep, keys.keep_every_hours, self.say
    )
    if self.storage.steps():
      old = self.workdir.read_config(base_config.SAVED)
      if changes := saved_config.check_resumable(old, self.config):
        self.say('Resuming with changes: ' + '; '.join(changes))
    elif self.leads and self.workdir.config_json.exists():
      self.say(
        f'There is no checkpoint in {self.workdir.path}: the run begins anew. '
        'Give --init_from again if it had that.'
      )

  def restore(self, initial: update.LearnerState) -> update.LearnerState:
    """Returns the state to continue from; `initial` if there is none.

    Raises WorkdirError if there are checkpoints but none is sound, and
    CheckpointMismatch if the state is of another kind.
    """
    # The state of the other hosts comes from the one that leads.
    if not self.storage.steps():
      return initial
    restored = self.storage.restore(initial)
    if restored is None:
      # A new run would overwrite the curves of the old one.
      raise workdir_lib.WorkdirError(
        f'No checkpoint in --workdir={self.workdir.path} is sound; start '
        'with another.'
      )
    try:
      self.record = report.RunRecord(**restored.record)
    except TypeError as e:
      raise workdir_lib.WorkdirError(
        f'Checkpoint {restored.step} in --workdir={self.workdir.path} is of '
        f'another release ({e}); start with another.'
      ) from e
    self.say(
      f'Resuming from checkpoint {restored.step}: {self.record.env_steps} '
      f'environment steps and {self.record.seconds:.0f} s so far.'
    )
    return restored.state

  def follow(
    self, shared: Mapping[str, Any], step: int, is_exact: bool = True
  ) -> None:
    """Continues from host 0's record, of checkpoint `step`.

    Takes this host's replay of that step or, if `is_exact` is false, its last.
    """
    if self.leads:
      return
    shared_record = report.RunRecord(**shared)
    self.record = dataclasses.replace(
      shared_record, inference_keys=[], replay=''
    )
    if not shared_record.replay:
      return
    steps = file_io.numbers_in(self.workdir.replay)
    if not is_exact:
      step = max(steps, default=step)
    if step in steps:
      self.record.replay = str(step)
    else:
      self.say(
        f'The replay starts empty: there is none of checkpoint {step} in '
        f'{self.workdir.replay}.'
      )

  @property
  def replay_path(self) -> str | None:
    """Path for `restore_replay`; None for nothing."""
    # A stranger's record could name another folder.
    if not (self.config.checkpoint.replay and self.record.replay.isdecimal()):
      return None
    return str(self.workdir.replay / self.record.replay)

  def restore_replay(
    self, store: replay.TrajectoryStore
  ) -> checkpoints_lib.ReplayCheckpoints | None:
    """Restores `store` if it can; returns what saves it, None if nothing."""
    if not (self.config.checkpoint.replay and store.is_saved):
      return None
    saved = checkpoints_lib.ReplayCheckpoints(
      store, self.workdir.replay, self.say
    )
    if self.replay_path:
      try:
        saved.restore(self.record.replay)
      except replay.CheckpointError as e:
        self.say(f'The replay starts empty: {e}')
    return saved


@dataclasses.dataclass
class CheckpointWriter:
  """Writes checkpoints, at once or in a thread; one thread calls it.

  Never saves a replay without `saved_replay`.
  """

  storage: checkpoints.Checkpoints
  saved_replay: checkpoints_lib.ReplayCheckpoints | None
  say: Callable[[str], None]

  def __post_init__(self) -> None:
    self._thread = threading.Thread()
    self._error: BaseException | None = None

  def save(self, state: StateSource, now: RecordSource) -> None:
    """Saves a last checkpoint, unless this update has one already.

    `now` is called when the replay has settled.

    Raises:
      NotWritten: if it could not be written, as on a full disk.
      BaseException: another error of this checkpoint or of an earlier one.
    """
    earlier = self._join()
    taken = state()
    if int(taken.step) not in self.storage.steps():
      self._write(taken, now)
    if earlier is not None:
      raise earlier

  def save_midway(
    self, state: StateSource, now: RecordSource, wait: bool
  ) -> None:
    """Saves a checkpoint in a thread; only warns if it cannot be written.

    Returns when the replay has settled, or with `wait` when all is written. The
    thread calls `now`. Raises other errors, of an earlier checkpoint too.
    """
    if self._thread.is_alive():
      self.say(
        'A checkpoint is left out, as the one before is still being written; '
        'save less often (--config.checkpoint.every_seconds).'
      )
      return
    self.finish()
    taken = state()
    if int(taken.step) in self.storage.steps():
      return
    # These arrays may be views of memory that the next update overwrites.
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
    if wait:
      self._thread.join()
      self.finish()

  def finish(self, timeout: float | None = None) -> None:
    """Waits, `timeout` seconds at most, for the thread; raises its error."""
    error = self._join(timeout)
    if error is not None:
      raise error

  def _join(self, timeout: float | None = None) -> BaseException | None:
    if self._thread.is_alive():
      self.say('Waiting for the checkpoint that is being written.')
      self._thread.join(timeout)
    error, self._error = self._error, None
    return error

  def _write_guarded(
    self,
    state: update.LearnerState,
    now: RecordSource,
    settled: threading.Event,
  ) -> None:
    try:
      self._write(state, now, settled.set)
    except file_io.NotWritten as e:
      self.say(f'{e} The next save tries again.')
    except BaseException as e:
      self._error = e
    finally:
      settled.set()

  def _write(
    self,
    state: update.LearnerState,
    now: RecordSource,
    on_settled: Callable[[], None] = lambda: None,
  ) -> None:
    """Writes both parts; calls `on_settled` when both are settled."""
    step = int(state.step)
    taken: list[report.RunRecord] = []

    def settle() -> None:
      taken.append(now())
      on_settled()

    # First, so that no learner's checkpoint names a replay that is missing.
    name = self.saved_replay.save(step, settle) if self.saved_replay else ''
    if not taken:
      settle()
    # If a lost server was asked again, the last of several.
    saved = dataclasses.replace(taken[-1], replay=name)
    try:
      self.storage.save(step, state, dataclasses.asdict(saved))
    finally:
      if self.saved_replay is not None:
        self.saved_replay.prune(self.storage.steps())


@dataclasses.dataclass
class BestCheckpoint:
  """The parameters that were evaluated best: `checkpoint.keep_best`.

  Goes on from the best checkpoint that is there, if any. Another thread may add
  evaluation episodes to `window`.
  """

  workdir: workdir_lib.Workdir
  say: Callable[[str], None]
  window: report.EpisodeWindow

  def __post_init__(self) -> None:
    self._storage = checkpoints.Checkpoints(
      self.workdir.best, keep=2, report=self.say
    )
    self._count = 0
    self._best = -math.inf
    if record := self._storage.newest_record():
      returns = record['eval_returns']
      self._best = sum(returns) / max(len(returns), 1)

  def save_if_due(self, state: StateSource, now: RecordSource) -> None:
    """Saves in place of the best so far, if a new evaluation was better."""
    if self.window.count - self._count < report.EVAL_WINDOW:
      return
    self._count = self.window.count
    mean = self.window.mean_return()
    if mean is None or mean <= self._best:
      return
    self._best = mean
    taken, record = state(), dataclasses.asdict(now())
    step = int(taken.step)
    try:
      self._storage.save(step, taken, record)
    except file_io.NotWritten as e:
      self.say(f'{e} An older best checkpoint may remain.')
      return
    for other in self._storage.steps():
      if other != step:
        file_io.remove(self._storage.path / str(other))

  def describe(self) -> None:
    """Says which checkpoint is the best, if there is one."""
    for step in self._storage.steps():
      self.say(
        f'Best checkpoint: {step}, with an evaluation of {self._best:.2f}.'
      )
