"""Records demonstrations: plays, and keeps the sequences that a run would.

`launch/record.py` calls `record`. What it writes fills the table of
demonstrations of a run with the same configuration (`replay.demonstrations`,
`--config.demonstrations.path`), as R2D3 uses them (arXiv 1909.01387).
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.demonstrations import tape
from seedrl_jax.demonstrations import teacher as teacher_lib
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.evaluation import playing
from seedrl_jax.evaluation import stream as stream_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import unrolls
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks
from seedrl_jax.replay import factory as replay_factory
from seedrl_jax.replay.reverb.client import errors
from seedrl_jax.run import config_checks
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.runtime import progress
from seedrl_jax.runtime import workdir as workdir_lib

# Recorded as the version of parameters: they are none of the student's.
_VERSION = types.NO_VERSION


@dataclasses.dataclass(frozen=True)
class Options:
  """What to play, and what to keep of it.

  Attributes:
    teacher_workdir: of the run whose checkpoint plays; '' where a policy does.
    policy: `module:function`, see `recording_teacher.from_policy`; or ''.
    out: folder to write; '': none, where there is a server to fill.
    episodes: to play, exactly.
    min_return: raw return from which an episode is kept; None: any.
    sample: act as the training environments do, instead of greedily.
    seed: of environments, policy and sampling.
    num_envs: environments side by side; 0: `playing.DEFAULT_NUM_ENVS`.
    checkpoint: which; None: the newest that is sound.
    allowed: flags that allow what is not of this package; see `trust.check`.
  """

  teacher_workdir: str = ''
  policy: str = ''
  out: str = ''
  episodes: int = 20
  min_return: float | None = None
  sample: bool = False
  seed: int = 0
  num_envs: int = 0
  checkpoint: int | None = None
  allowed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Recording:
  """What was recorded.

  Attributes:
    manifest: of the folder.
    returns: float64 `[kept]`, of the episodes that were kept.
    played: episodes, kept or not.
    places: where the sequences are now.
  """

  manifest: folder_lib.Manifest
  returns: np.ndarray
  played: int
  places: tuple[str, ...]

  def report(self) -> str:
    """Returns it all in a few lines."""
    manifest = self.manifest
    return (
      f'{manifest.env_id}, {manifest.made_by}: kept {len(self.returns)} of '
      f'{self.played} episodes, {playing.mean_text(self.returns)}\n'
      f'{manifest.sequences} sequences in {" and ".join(self.places)}'
    )


def record(
  config: Any, options: Options, line: progress.ProgressLine
) -> Recording:
  """Plays and records.

  Args:
    config: of the run that is to learn from it. With `replay.address`, the
      server's table of demonstrations gets the sequences too.
    options: what to play and keep.
    line: where to say how it goes.

  Raises:
    ValueError: where that cannot be done, or nothing was kept; one sentence.
    OSError: where the folder cannot be written.
    registry.MissingLibraryError: where EnvPool cannot be loaded.
  """
  _check(config, options)
  num_envs = playing.check_counts(options.episodes, options.num_envs)
  config = config.copy_and_resolve_references()
  config.num_eval_envs = num_envs
  env_spec = layout_lib.make_env_spec(config)
  student = agents.load_agent(config, env_spec)
  teacher = _make_teacher(config, options, env_spec, student, line)
  spec = sequence_spec(config, env_spec, student)
  with contextlib.ExitStack() as opened:
    store = _open_store(config, spec, student.overlap)
    if store is not None:
      opened.callback(store.close)
    folder = opened.enter_context(_folder(options.out))
    layout = blocks.UnrollLayout(spec, student.overlap)
    with folder_lib.create(folder, layout) as writer:
      recorder = _play(
        config, options, env_spec, student, teacher, spec, writer, line
      )
      returns = np.array([e.episode_return for e in recorder.kept])
      if not len(returns):
        raise ValueError(
          f'--min_return={options.min_return}: none of the {options.episodes} '
          'episodes had as much; lower it, play more or take another teacher.'
        )
      writer.manifest = folder_lib.Manifest(
        env_id=env_spec.env_id,
        sequences=writer.sequences,
        episodes=len(returns),
        mean_return=float(returns.mean()),
        made_by=teacher.made_by,
        unroll=layout.signature(),
      )
    places = [options.out] if options.out else []
    if store is not None:
      _fill(store, folder, env_spec.env_id)
      places.append(f'the server at {config.replay.address}')
  return Recording(writer.manifest, returns, options.episodes, tuple(places))


def _check(config: Any, options: Options) -> None:
  config_checks.check(config, agents.ranges(config))
  if bool(options.teacher_workdir) == bool(options.policy):
    raise ValueError(
      'Give either --teacher_workdir (whose checkpoint plays) or --policy '
      '(module:function).'
    )
  if options.out:
    folder_lib.check_new(options.out)
  elif not config.replay.address:
    raise ValueError(
      '--out is missing; name a folder to write, or a server to fill by '
      '--config.replay.address.'
    )


def _make_teacher(
  config: Any,
  options: Options,
  env_spec: types.EnvSpec,
  student: agents.Agent,
  line: progress.ProgressLine,
) -> teacher_lib.Teacher:
  if options.policy:
    return teacher_lib.from_policy(
      student, env_spec, options.policy, options.seed
    )
  return teacher_lib.from_checkpoint(
    student,
    config,
    env_spec,
    workdir_lib.Workdir(options.teacher_workdir, '--teacher_workdir'),
    options.checkpoint,
    line,
    options.allowed,
  )


def sequence_spec(
  config: Any, env_spec: types.EnvSpec, student: agents.Agent
) -> types.Unroll:
  """Returns what the student's run will store."""
  key = jax.random.PRNGKey(0)
  step = device_step_lib.DeviceStep(
    student, env_spec, jax.local_devices()[0], 1, key
  )
  params = jax.eval_shape(student.init, key)
  return unrolls.unroll_spec(
    env_spec,
    student.num_transitions(config.unroll_length),
    step.output_spec(params),
    step.core_spec(),
  )


def _open_store(
  config: Any, spec: types.Unroll, overlap: int
) -> replay.TrajectoryStore | None:
  """Connects to the server to fill; None where there is none."""
  address = config.replay.address
  if not address:
    return None
  if not config.demonstrations.fraction:
    raise ValueError(
      f'--config.replay.address={address}: without '
      '--config.demonstrations.fraction there is no table to fill; give it as '
      'the run and the server have it.'
    )
  return replay_factory.make_store(
    config, spec, block_width=config.batch_size, overlap=overlap
  )


def _fill(store: replay.TrajectoryStore, folder: str, env_id: str) -> None:
  """Fills a server's table; ValueError where the server is lost."""
  try:
    folder_lib.insert_all(store, folder, env_id)
  except errors.ReverbError as e:
    raise ValueError(
      f'The server may have only a part of the demonstrations: {e}'
    ) from e


@contextlib.contextmanager
def _folder(out: str) -> Iterator[str]:
  """Gives the folder to write: the user's, or one for the time being."""
  if out:
    yield out
    return
  with tempfile.TemporaryDirectory(prefix='seedrl-record-') as scratch:
    yield os.path.join(scratch, 'demonstrations')


def _play(
  config: Any,
  options: Options,
  env_spec: types.EnvSpec,
  student: agents.Agent,
  teacher: teacher_lib.Teacher,
  spec: types.Unroll,
  writer: folder_lib.FolderWriter,
  line: progress.ProgressLine,
) -> tape.GameRecorder:
  """Plays all episodes and writes the sequences of those that are kept."""
  num_envs = env_spec.num_eval_envs
  quota = stream_lib.EpisodeQuota(options.episodes, num_envs)
  priorities = _make_priorities(student, teacher)

  def take(block: replay.Block, count: int) -> None:
    writer.add(block, priorities(block), count)

  def keep(episode: envs.Episode) -> bool:
    least = options.min_return
    return least is None or episode.episode_return >= least

  recorder = tape.GameRecorder(
    tape.SequenceBlocks(blocks.UnrollLayout(spec), take),
    num_transitions=student.num_transitions(config.unroll_length),
    stride=config.unroll_length,
    num_envs=num_envs,
    quota=quota,
    keep=keep,
  )
  stream = env_factory.make_stream(
    config.env, playing.env_seed(options.seed), num_envs, batch_size=num_envs
  )
  observed = stream_lib.ObservedStream(stream, quota, None)
  worker = playing.make_worker(
    teacher.agent,
    teacher.params,
    _VERSION,
    teacher.wrap(observed),
    playing.env_ids(env_spec, num_envs, options.sample),
    options.seed,
    recorder,
  )
  try:
    playing.play(worker, quota, line)
  finally:
    observed.close()
  recorder.close()
  return recorder


def _make_priorities(
  student: agents.Agent, teacher: teacher_lib.Teacher
) -> Any:
  """Returns what makes float64 `[W]` priorities of a block."""
  if not teacher.is_student or student.initial_priorities is None:
    return lambda block: np.ones(block.width)
  compute = jax.jit(student.initial_priorities)

  def priorities(block: replay.Block) -> np.ndarray:
    steps = types.without_observation(block.unroll.steps)
    return np.asarray(compute(steps), np.float64)

  return priorities
