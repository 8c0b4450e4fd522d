"""Evaluates a checkpoint of a run: scores its episodes and records a video."""

import contextlib
import dataclasses
import json
import os
import pathlib

import numpy as np

from seedrl_jax import types
from seedrl_jax.envs import atari
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.evaluation import playing
from seedrl_jax.evaluation import video as video_lib
from seedrl_jax.runtime import file_io, progress
from seedrl_jax.runtime import workdir as workdir_lib


@dataclasses.dataclass(frozen=True)
class EvaluationOptions(playing.PlayOptions):
  """`PlayOptions`, and a video file for the first environment's episodes."""

  video: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """The outcome of an evaluation.

  Episodes are in the order of their ends; last are those that were cut off.
  `tasks` are the names of a run's tasks, if there are several.
  """

  env_id: str
  checkpoint: int
  actions: str  # 'sampled' or 'greedy'
  episodes: tuple[envs.Episode, ...]
  video: video_lib.VideoRecorder | None
  tasks: tuple[str, ...] = ()

  @property
  def returns(self) -> np.ndarray:
    """Episode returns, float64 `[episodes]`."""
    return np.array([e.episode_return for e in self.episodes])

  def save(self, workdir: str | os.PathLike[str]) -> None:
    """Appends the returns to evaluations.jsonl, which `seedrl report` reads."""
    path = workdir_lib.Workdir(workdir).path / 'evaluations.jsonl'
    workdir_lib.refuse_links(path)
    line = {
      'checkpoint': self.checkpoint,
      'actions': self.actions,
      'returns': self.returns.tolist(),
    }
    if self.tasks:
      line['tasks'] = [self.tasks[e.task] for e in self.episodes]
    file_io.append_whole(path, f'{json.dumps(line)}\n'.encode())

  def report(self) -> str:
    """Returns the figures in a few lines."""
    returns = self.returns
    length = np.mean([e.length for e in self.episodes])
    lines = [
      f'{self.env_id}, checkpoint {self.checkpoint}, {len(returns)} episodes, '
      f'{self.actions} actions',
      f'{playing.mean_text(returns)} | median {np.median(returns):.2f} | '
      f'min {returns.min():.2f} | max {returns.max():.2f} | mean length '
      f'{length:.1f} steps',
    ]
    lines += self._task_lines()
    if self.video is not None:
      cut = ', where it was cut' if self.video.is_full else ''
      lines.append(
        f'video: {self.video.path} ({self.video.num_frames} frames{cut})'
      )
    return '\n'.join(lines)

  def _task_lines(self) -> list[str]:
    numbers = np.array([e.task for e in self.episodes])
    returns = {
      self.tasks[i]: self.returns[numbers == i]
      for i in np.unique(numbers)
      if self.tasks
    }
    lines = []
    if len(returns) > 1:
      lines = [f'{x}: {playing.mean_text(y)}' for x, y in returns.items()]
    means = {task: values.mean() for task, values in returns.items()}
    score = atari.capped_mean(means)
    if score is not None:
      lines.append(f'mean capped human-normalised score {score:.3f}')
    return lines


def evaluate(
  workdir: str | os.PathLike[str],
  options: EvaluationOptions,
  line: progress.ProgressLine,
) -> Evaluation:
  """Plays a checkpoint of a run, which may still be training.

  Raises ValueError if the options, the run or its checkpoint cannot be used,
  and registry.MissingLibraryError if EnvPool cannot be loaded.
  """
  if options.video:
    video_lib.check_path(options.video)
  directory = workdir_lib.Workdir(workdir)
  config = playing.read_config(
    directory, options.allowed, factory=options.factory
  )
  num_tasks = len(env_factory.task_names(config.env))
  if num_tasks and not options.task:
    if options.episodes < num_tasks:
      raise ValueError(
        f'--episodes={options.episodes}: give at least {num_tasks}, one for '
        'each task, or --task=NAME.'
      )
    # All tasks get equally many environments.
    num_envs = max(1, options.width // num_tasks) * num_tasks
    options = dataclasses.replace(options, num_envs=num_envs)
  config.num_eval_envs = options.width
  env_spec = env_factory.make_env_spec(config)
  player = playing.load_player(
    directory, config, env_spec, options.checkpoint, line
  )
  return play(player, config, env_spec, options, line)


def play(
  player: playing.Player,
  config: types.Config,
  env_spec: types.EnvSpec,
  options: EvaluationOptions,
  line: progress.ProgressLine,
) -> Evaluation:
  """Plays the configured environments with a player's parameters."""
  stream = env_factory.make_stream(
    config.env,
    seed=options.env_seed,
    num_envs=options.width,
    # Synchronous, so that the episodes depend on the seed alone.
    batch_size=options.width,
    rendered=bool(options.video),
    tasks=env_factory.equal_tasks(config.env, options.task, options.width),
  )
  quota = playing.EpisodeQuota(
    options.episodes, options.width, options.max_steps
  )
  recorder = None
  with contextlib.ExitStack() as cleanup:
    cleanup.callback(stream.close)
    if options.video:
      layout = config.network.image_layout
      recorder = video_lib.VideoRecorder(options.video, stream, layout)
      cleanup.callback(recorder.close)
    observed = playing.ObservedStream(stream, quota, recorder)
    worker = playing.make_worker(player, observed, env_spec, options)
    playing.play(worker, quota, line)
  return Evaluation(
    options.task or env_spec.env_id,
    player.version,
    'sampled' if options.sample else 'greedy',
    (*quota.episodes, *quota.cut),
    recorder,
    env_spec.stream.tasks,
  )
