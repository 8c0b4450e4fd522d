"""Records demonstrations as a run of the same configuration stores them."""

import contextlib
import dataclasses
import math
from typing import NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.demonstrations import folder as folder_lib
from seedrl_jax.demonstrations import mixing, tape
from seedrl_jax.demonstrations import teacher as teacher_lib
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.evaluation import playing
from seedrl_jax.inference import assembler, specs
from seedrl_jax.replay import blocks
from seedrl_jax.replay import factory as replay_factory
from seedrl_jax.replay.reverb import errors
from seedrl_jax.runtime import progress


@dataclasses.dataclass(frozen=True)
class RecordingOptions(playing.PlayOptions):
  """What to play, and which episodes to keep; see `PlayOptions`.

  Attributes:
    teacher_workdir: run whose checkpoint plays; or ''.
    policy: see `teacher.from_policy`; or ''.
    out: folder to write.
    min_return: least raw return of episodes to keep.
  """

  teacher_workdir: str = ''
  policy: str = ''
  out: str = ''
  min_return: float = -math.inf

  def check(self, config: types.Config) -> None:
    if bool(self.teacher_workdir) == bool(self.policy):
      raise ValueError(
        'Give either --teacher_workdir (whose checkpoint plays) or --policy '
        '(module:function).'
      )
    if not self.out:
      raise ValueError('--out is missing; name a folder to write.')
    folder_lib.check_new(self.out)
    address = config.replay.address
    if address and not config.demonstrations.fraction:
      raise ValueError(
        f'--config.replay.address={address}: without '
        '--config.demonstrations.fraction there is no table to fill; give it '
        'as the run and the server have it.'
      )


class Recording(NamedTuple):
  """What was recorded; `returns`, float64 `[n]`, are of the kept episodes."""

  manifest: folder_lib.Manifest
  returns: np.ndarray
  report: str  # the figures, in a few lines


def record(
  config: types.Config, options: RecordingOptions, line: progress.ProgressLine
) -> Recording:
  """Records sequences for the run that `config` describes.

  They go to a folder, then to the server at `replay.address` if that is set.

  Raises:
    ValueError: if the options do not fit, or no episode was kept.
    OSError: if the folder cannot be written.
    registry.MissingLibraryError: if EnvPool cannot be loaded.
  """
  options.check(config)
  config = config.copy_and_resolve_references()
  config.num_eval_envs = options.width
  env_spec = env_factory.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  student = teacher_lib.Student(agent, config, env_spec)
  if options.policy:
    teacher = teacher_lib.from_policy(student, options.policy, options.seed)
  else:
    teacher = teacher_lib.from_checkpoint(
      student, options.teacher_workdir, options, line
    )
  layout = blocks.UnrollLayout(
    unroll_spec(student, agent, env_spec.stream), agent.overlap
  )
  places = [options.out]
  with contextlib.ExitStack() as cleanup:
    store = None
    if address := config.replay.address:
      # Before playing, as the server may not answer.
      store = replay_factory.make_store(
        config.replay,
        mixing.run_tables(config),
        layout.unroll_spec,
        config.batch_size,
        config.batch_size,
        config.seed,
        layout.overlap,
      )
      cleanup.callback(store.close)
      places.append(f'the server at {address}')
    with folder_lib.create(options.out, layout) as writer:
      writer.manifest, returns = _play(student, teacher, options, writer, line)
    if store is not None:
      try:
        folder_lib.insert_all(store, options.out, env_spec.env_id)
      except errors.ReverbError as e:
        raise ValueError(
          f'The server may have only a part of the demonstrations: {e}'
        ) from e
  report = (
    f'{env_spec.env_id}, {teacher.description}: kept {len(returns)} of '
    f'{options.episodes} episodes, {playing.mean_text(returns)}\n'
    f'{writer.sequences} sequences in {" and ".join(places)}'
  )
  return Recording(writer.manifest, returns, report)


def unroll_spec(
  student: teacher_lib.Student, agent: agents.Agent, stream: types.StreamSpec
) -> types.Unroll:
  """Returns the spec of a student's sequences, if `agent` acts in `stream`.

  `agent` has the student's outputs.
  """
  outputs = specs.output_spec(
    student.agent, student.env_spec.stream, student.agent.params_shapes()
  )
  return specs.unroll_spec(
    stream,
    student.agent.num_transitions(student.config.unroll_length),
    outputs,
    specs.core_spec(agent),
  )


def _play(
  student: teacher_lib.Student,
  teacher: teacher_lib.Teacher,
  options: RecordingOptions,
  writer: folder_lib.FolderWriter,
  line: progress.ProgressLine,
) -> tuple[folder_lib.Manifest, np.ndarray]:
  """Writes sequences; returns their description and returns, float64 `[n]`."""
  num_envs = options.width
  quota = playing.EpisodeQuota(options.episodes, num_envs, options.max_steps)
  priorities = None
  if teacher.is_student:
    priorities = assembler.make_priorities(
      student.agent, writer.layout.unroll_spec, 1, jax.local_devices()[0]
    )
  stream = env_factory.make_stream(
    student.config.env, options.env_seed, num_envs, batch_size=num_envs
  )
  player = playing.Player(teacher.agent, teacher.params, types.NO_VERSION)
  with contextlib.closing(stream):
    observed = teacher.wrap(playing.ObservedStream(stream, quota))
    recorder = tape.GameRecorder(
      writer,
      writer.layout,
      unroll_spec(student, teacher.agent, observed.spec),
      quota,
      num_envs,
      options.min_return,
      priorities,
      student.agent.burn_in,
    )
    worker = playing.make_worker(
      player, observed, student.env_spec, options, recorder
    )
    playing.play(worker, quota, line)
  recorder.close()
  if not recorder.episodes:
    raise ValueError(
      f'--min_return={options.min_return}: none of the {options.episodes} '
      'episodes had as much; lower it, play more or take another teacher.'
    )
  returns = np.array([e.episode_return for e in recorder.episodes])
  manifest = folder_lib.Manifest(
    env_id=student.env_spec.env_id,
    sequences=writer.sequences,
    episodes=len(returns),
    mean_return=float(returns.mean()),
    made_by=teacher.description,
    unroll=writer.layout.signature(),
  )
  return manifest, returns
