"""Plays a checkpoint of a run and scores its episodes.

`launch/evaluate.py` calls `evaluate`. Acting goes through the inference worker
and the environment stream that training uses, with the run's environment
options, so that what is scored is what was trained.
"""

import dataclasses
import os
import pathlib
import time
from typing import Any, NoReturn

import jax
import numpy as np

from seedrl_jax import builder, evaluation_stream, types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.inference import assembler as assembler_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.runtime import checkpoints, progress, video
from seedrl_jax.runtime import workdir as workdir_lib

DEFAULT_NUM_ENVS = 10

# Keeps these environments' seeds apart from those of any training stream.
_SEED_OFFSET = 1_500_000_007
_PROGRESS_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Options:
  """What to play and how.

  Attributes:
    episodes: how many, exactly.
    sample: act as the training environments do, instead of as the evaluation
      environments (greedily).
    seed: of environments and sampling.
    num_envs: environments side by side; 0: `DEFAULT_NUM_ENVS`. Never more than
      there are episodes.
    checkpoint: which; None: the newest that is sound.
    video: file to show the first environment's episodes in; None: none.
  """

  episodes: int = 20
  sample: bool = False
  seed: int = 0
  num_envs: int = 0
  checkpoint: int | None = None
  video: pathlib.Path | None = None


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
    n = len(self.episodes)
    return float(self.returns.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan

  def report(self) -> str:
    """Returns it all in a few lines."""
    returns = self.returns
    error = ''
    if len(returns) > 1:
      error = f' ± {self.standard_error:.2f} (mean ± standard error)'
    lines = [
      f'{self.env_id}, checkpoint {self.checkpoint}, {len(returns)} episodes, '
      + ('sampled actions' if self.sampled else 'greedy actions'),
      f'return {returns.mean():.2f}{error} | median {np.median(returns):.2f} | '
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
  _check(options)
  directory = workdir_lib.Workdir(workdir)
  num_envs = min(options.num_envs or DEFAULT_NUM_ENVS, options.episodes)
  config = directory.read_config()
  config.num_eval_envs = num_envs
  env_spec = builder.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  found = _load_params(directory, agent, options.checkpoint, line)
  stream = env_factory.make_stream(
    config.env,
    seed=(options.seed + _SEED_OFFSET) % 2**31,
    num_envs=num_envs,
    # All at once: what is played then depends on the seed alone.
    batch_size=num_envs,
    rendered=options.video is not None,
  )
  recorder = None
  if options.video is not None:
    recorder = evaluation_stream.Recorder(
      stream,
      video.EpisodeVideo(options.video, stream.steps_per_second),
      config.network.image_layout,
    )
  quota = evaluation_stream.EpisodeQuota(options.episodes, num_envs)
  observed = evaluation_stream.ObservedStream(stream, quota, recorder)
  worker = _make_worker(config, env_spec, agent, found, observed, options)
  try:
    _play(worker, quota, line)
  finally:
    observed.close()
  return Evaluation(
    env_spec.env_id,
    found.step,
    options.sample,
    tuple(quota.episodes),
    recorder.video if recorder else None,
  )


def _check(options: Options) -> None:
  if options.episodes < 1:
    raise ValueError(f'--episodes={options.episodes}: give at least 1.')
  if options.num_envs < 0:
    raise ValueError(f'--num_envs={options.num_envs}: give 0 or more.')
  if options.video is not None:
    video.check_path(options.video)


def _load_params(
  directory: workdir_lib.Workdir,
  agent: agents.Agent,
  number: int | None,
  line: progress.ProgressLine,
) -> checkpoints.Checkpoint:
  """Returns the checkpoint, with parameters alone as its state."""
  none = f'--workdir={directory.path} holds no checkpoint'
  if not directory.checkpoints.is_dir():
    raise ValueError(f'{none} yet.')
  store = checkpoints.Checkpoints(
    directory.checkpoints, report=line.say, read_only=True
  )
  steps = store.steps()
  if number is not None and number not in steps:
    there = ', '.join(map(str, steps)) or 'none'
    raise ValueError(f'{none} {number}; there are: {there}.')
  shapes = jax.eval_shape(agent.init, jax.random.PRNGKey(0))
  # Only shapes and dtypes matter; a broadcast zero has them for nothing.
  template = jax.tree.map(
    lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), shapes
  )
  found = store.restore_part('params', template, number)
  store.close()
  if found is None:
    raise ValueError(f'{none} that is sound.' if steps else f'{none} yet.')
  return found


def _make_worker(
  config: Any,
  env_spec: types.EnvSpec,
  agent: agents.Agent,
  found: checkpoints.Checkpoint,
  stream: envs.EnvStream,
  options: Options,
) -> worker_lib.InferenceWorker:
  """Makes a worker all of whose environments are for evaluation."""
  device = jax.local_devices()[0]
  key = jax.random.PRNGKey(options.seed)
  step = device_step_lib.DeviceStep(agent, device, stream.num_envs, key)
  # Published parameters have an axis of training devices.
  params = jax.device_put(jax.tree.map(lambda x: x[None], found.state), device)
  # The ids that agents know evaluation environments by, or, to sample, ids
  # that lie evenly among the training environments, which may explore by id.
  ids = np.arange(stream.num_envs, dtype=np.int32)
  if options.sample:
    ids = ids * env_spec.num_envs // stream.num_envs
  else:
    ids = ids + env_spec.num_envs
  return worker_lib.InferenceWorker(
    stream=stream,
    device_step=step,
    assembler=assembler_lib.UnrollAssembler(
      allocate=_no_unrolls,
      insert=_no_unrolls,
      global_env_id=ids[:0],
      unroll_length=config.unroll_length,
      overlap=agent.overlap,
      block_width=1,
    ),
    parameters=lambda: (found.step, params),
    global_env_id=ids,
    num_train_envs=0,
    output_spec=step.output_spec(found.state, env_spec.observation),
  )


def _no_unrolls(*block: Any) -> NoReturn:
  raise AssertionError('An evaluation makes no unrolls.')


def _play(
  worker: worker_lib.InferenceWorker,
  quota: evaluation_stream.EpisodeQuota,
  line: progress.ProgressLine,
) -> None:
  worker.compile()
  next_report = time.perf_counter() + _PROGRESS_SECONDS
  while not quota.is_met:
    worker.step()
    now = time.perf_counter()
    if now >= next_report:
      next_report = now + _PROGRESS_SECONDS
      steps = progress.format_count(worker.counters.eval_steps)
      line.update(
        f'{len(quota.episodes)}/{quota.total} episodes | {steps} steps'
      )
