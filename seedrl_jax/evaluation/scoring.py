"""Plays a checkpoint of a run and scores its episodes.

`launch/evaluate.py` calls `evaluate`. Acting goes through the inference worker
and the environment stream that training uses, with the run's environment
options, so that what is scored is what was trained.
"""

import dataclasses
import os
import pathlib

import numpy as np

from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.envs import trust
from seedrl_jax.evaluation import playing
from seedrl_jax.evaluation import stream as stream_lib
from seedrl_jax.run import layout
from seedrl_jax.runtime import progress, video
from seedrl_jax.runtime import workdir as workdir_lib


@dataclasses.dataclass(frozen=True)
class Options:
  """What to play and how.

  Attributes:
    episodes: how many, exactly.
    sample: act as the training environments do, instead of as the evaluation
      environments (greedily).
    seed: of environments and sampling.
    num_envs: environments side by side; 0: `playing.DEFAULT_NUM_ENVS`. Never
      more than there are episodes.
    checkpoint: which; None: the newest that is sound.
    video: file to show the first environment's episodes in; None: none.
    allowed: flags that allow what is not of this package; see `trust.check`.
  """

  episodes: int = 20
  sample: bool = False
  seed: int = 0
  num_envs: int = 0
  checkpoint: int | None = None
  video: pathlib.Path | None = None
  allowed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """What came out.

  Attributes:
    env_id: the environment's name.
    checkpoint: number of the one that played.
    sampled: whether actions were sampled.
    episodes: scored on raw rewards and at the real end; in the order of their
      ends.
    video: what was written, and a remark on it; None where nothing was.
  """

  env_id: str
  checkpoint: int
  sampled: bool
  episodes: tuple[envs.Episode, ...]
  video: video.EpisodeVideo | None

  @property
  def returns(self) -> np.ndarray:
    """Episode returns, float64 `[episodes]`."""
    return np.array([e.episode_return for e in self.episodes])

  @property
  def mean_length(self) -> float:
    """Mean of the episodes' agent steps."""
    return float(np.mean([e.length for e in self.episodes]))

  @property
  def standard_error(self) -> float:
    """Standard error of the mean return; nan of a single episode."""
    return playing.standard_error(self.returns)

  def report(self) -> str:
    """Returns it all in a few lines."""
    returns = self.returns
    lines = [
      f'{self.env_id}, checkpoint {self.checkpoint}, {len(returns)} episodes, '
      + ('sampled actions' if self.sampled else 'greedy actions'),
      f'{playing.mean_text(returns)} | median {np.median(returns):.2f} | '
      f'min {returns.min():.2f} | max {returns.max():.2f} | mean length '
      f'{self.mean_length:.1f} steps',
    ]
    if self.video is not None:
      cut = ', where it was cut' if self.video.is_full else ''
      lines.append(
        f'video: {self.video.path} ({self.video.num_frames} frames{cut})'
      )
      lines += [self.video.remark] if self.video.remark else []
    return '\n'.join(lines)


def evaluate(
  workdir: str | os.PathLike[str], options: Options, line: progress.ProgressLine
) -> Evaluation:
  """Plays a checkpoint.

  Args:
    workdir: of a run, which may be training meanwhile.
    options: what to play.
    line: where to say how it goes.

  Raises:
    ValueError: where that cannot be done; one sentence.
    registry.MissingLibraryError: where EnvPool cannot be loaded.
  """
  num_envs = _check(options)
  directory = workdir_lib.Workdir(workdir)
  config = directory.read_config()
  trust.check(config.to_dict(), options.allowed, f'--workdir={directory.path}')
  config.num_eval_envs = num_envs
  env_spec = layout.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  found = playing.load_params(directory, agent, options.checkpoint, line)
  stream = env_factory.make_stream(
    config.env,
    seed=playing.env_seed(options.seed),
    num_envs=num_envs,
    # All at once: what is played then depends on the seed alone.
    batch_size=num_envs,
    rendered=options.video is not None,
  )
  recorder = None
  if options.video is not None:
    recorder = stream_lib.Recorder(
      stream,
      video.EpisodeVideo(options.video, stream.steps_per_second),
      config.network.image_layout,
    )
  quota = stream_lib.EpisodeQuota(options.episodes, num_envs)
  observed = stream_lib.ObservedStream(stream, quota, recorder)
  worker = playing.make_worker(
    agent,
    found.state,
    found.step,
    observed,
    playing.env_ids(env_spec, num_envs, options.sample),
    options.seed,
  )
  try:
    playing.play(worker, quota, line)
  finally:
    observed.close()
  return Evaluation(
    env_spec.env_id,
    found.step,
    options.sample,
    tuple(quota.episodes),
    recorder.video if recorder else None,
  )


def _check(options: Options) -> int:
  """Returns the environments to play side by side."""
  num_envs = playing.check_counts(options.episodes, options.num_envs)
  if options.video is not None:
    video.check_path(options.video)
  return num_envs
