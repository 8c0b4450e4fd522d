"""Plays episodes with fixed parameters, through a training run's worker."""

import dataclasses
import time
from typing import NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.envs import base as envs
from seedrl_jax.evaluation import stream as stream_lib
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import specs
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.runtime import checkpoints, progress
from seedrl_jax.runtime import workdir as workdir_lib

_DEFAULT_NUM_ENVS = 10
# Keeps the seeds apart from those of any training stream.
_SEED_OFFSET = 1_500_000_007
_PROGRESS_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class PlayOptions:
  """How to play.

  Attributes:
    episodes: how many, exactly.
    sample: act as the training environments do, not greedily.
    seed: of environments, policy and sampling.
    num_envs: environments side by side; 0: up to ten.
    checkpoint: its number; None: the newest that is intact.
    allowed: flags that allow foreign code; see `trust.check`.
  """

  episodes: int = 20
  sample: bool = False
  seed: int = 0
  num_envs: int = 0
  checkpoint: int | None = None
  allowed: tuple[str, ...] = ()

  @property
  def width(self) -> int:
    """Number of environments, at most one for each episode."""
    return min(self.num_envs or _DEFAULT_NUM_ENVS, self.episodes)

  @property
  def env_seed(self) -> int:
    """Seed of the environments' stream."""
    return (self.seed + _SEED_OFFSET) % 2**31

  def check(self) -> None:
    """Raises ValueError if a number is out of range."""
    if self.episodes < 1:
      raise ValueError(f'--episodes={self.episodes}: give at least 1.')
    if self.num_envs < 0:
      raise ValueError(f'--num_envs={self.num_envs}: give 0 or more.')


class Player(NamedTuple):
  """An agent with fixed acting parameters, on the host.

  `version` is recorded with every step.
  """

  agent: agents.Agent
  params: agents.Params
  version: int


def load_params(
  directory: workdir_lib.Workdir,
  agent: agents.Agent,
  number: int | None,
  line: progress.ProgressLine,
  flag: str = '--workdir',
) -> checkpoints.Checkpoint:
  """Returns a checkpoint with acting parameters as its state.

  `number` None is the newest that is intact; `flag` named the directory.

  Raises:
    ValueError: if there is none, or it is of another agent.
  """
  none = f'{flag}={directory.path} holds no checkpoint'
  if not directory.checkpoints.is_dir():
    raise ValueError(f'{none} yet.')
  store = checkpoints.Checkpoints(
    directory.checkpoints, report=line.say, read_only=True
  )
  # Only shapes and dtypes matter; a broadcast zero takes no memory.
  template = jax.tree.map(
    lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape),
    agent.state_shapes(),
  )
  steps = store.steps()
  if number is not None:
    none += f' {number}'
    if number not in steps:
      there = ', '.join(map(str, steps)) or 'none'
      raise ValueError(f'{none}; there are: {there}.')
  found = store.restore(template, 'agent', number)
  if found is None:
    raise ValueError(f'{none} that is sound.' if steps else f'{none} yet.')
  return found._replace(state=agent.acting_params(found.state))


def make_worker(
  player: Player,
  stream: envs.EnvStream,
  env_spec: types.EnvSpec,
  options: PlayOptions,
  sink: worker_lib.StepSink | None = None,
) -> worker_lib.InferenceWorker:
  """Makes a worker that acts with a player's parameters.

  The stream returns all environments in each batch; `sink` None records none.
  """
  agent, params, version = player
  device = jax.local_devices()[0]
  key = jax.random.PRNGKey(options.seed)
  output = specs.output_spec(agent, stream.spec, params)
  step = device_step_lib.DeviceStep(
    agent, stream.spec, output, device, stream.num_envs, key
  )
  published = jax.device_put(params, device)
  return worker_lib.InferenceWorker(
    stream=stream,
    device_step=step,
    sink=sink,
    parameters=lambda: (version, published),
    global_env_id=_env_ids(env_spec, stream.num_envs, options.sample),
  )


def _env_ids(
  env_spec: types.EnvSpec, num_envs: int, sample: bool
) -> np.ndarray:
  """Returns int32 `[num_envs]` run-wide ids, by which an agent explores."""
  ids = np.arange(num_envs, dtype=np.int32)
  if sample:
    return ids * env_spec.num_envs // num_envs
  return ids + env_spec.num_envs


def play(
  worker: worker_lib.InferenceWorker,
  quota: stream_lib.EpisodeQuota,
  line: progress.ProgressLine,
) -> None:
  """Plays until the quota is met, and shows the progress."""
  worker.compile()
  next_report = time.perf_counter() + _PROGRESS_SECONDS
  while not quota.is_met:
    worker.step()
    now = time.perf_counter()
    if now >= next_report:
      next_report = now + _PROGRESS_SECONDS
      counters = worker.counters
      steps = progress.format_count(counters.eval_steps + counters.env_steps)
      line.update(
        f'{len(quota.episodes)}/{quota.total} episodes | {steps} steps'
      )


def standard_error(returns: np.ndarray) -> float:
  """Returns the standard error of the mean; nan of a single return."""
  n = len(returns)
  return float(returns.std(ddof=1) / np.sqrt(n)) if n > 1 else np.nan


def mean_text(returns: np.ndarray) -> str:
  """Returns mean and standard error of returns `[episodes]` as text."""
  text = f'return {returns.mean():.2f}'
  if len(returns) > 1:
    text += f' ± {standard_error(returns):.2f} (mean ± standard error)'
  return text
