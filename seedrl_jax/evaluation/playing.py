"""Plays episodes with fixed parameters, through a training run's worker."""

import dataclasses
import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax
import numpy as np

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import trust
from seedrl_jax.evaluation import video
from seedrl_jax.inference import device_step as device_step_lib
from seedrl_jax.inference import specs
from seedrl_jax.inference import worker as worker_lib
from seedrl_jax.networks import observations
from seedrl_jax.runtime import checkpoints, progress, settings
from seedrl_jax.runtime import workdir as workdir_lib

_DEFAULT_NUM_ENVS = 10
# Keeps the seeds apart from those of any training stream.
_SEED_OFFSET = 1_500_000_007
_PROGRESS_SECONDS = 1.0
# Keys that acting depends on, except the agent's.
_NEEDED = {
  key: allowed
  for key, allowed in base_config.SAVED.items()
  if key.startswith(('env.', 'network.'))
}


@dataclasses.dataclass(frozen=True)
class PlayOptions:
  """How to play."""

  episodes: int = 20  # how many, exactly
  sample: bool = False  # act as the training environments do, not greedily
  seed: int = 0  # of environments, policy and sampling
  num_envs: int = 0  # environments side by side; 0: up to ten
  # Its number, or 'best'; None: the newest that is intact.
  checkpoint: int | str | None = None
  max_steps: int = settings.EPISODE  # after which an episode is cut off
  allowed: tuple[str, ...] = ()  # flags for foreign code; see `trust.check`
  factory: str = ''  # makes the environments, in place of the run's
  task: str = ''  # the only one to play, of a run of several; '' means all

  @property
  def width(self) -> int:
    """Number of environments, at most one for each episode."""
    return min(self.num_envs or _DEFAULT_NUM_ENVS, self.episodes)

  @property
  def env_seed(self) -> int:
    """Seed of the environments' stream."""
    return (self.seed + _SEED_OFFSET) % 2**31


class EpisodeQuota:
  """Collects a fixed number of episodes from each environment.

  Taking those that end first would favour short ones. An environment whose
  episode reaches `max_steps` plays no others.
  """

  def __init__(
    self, episodes: int, num_envs: int, max_steps: int = settings.EPISODE
  ):
    """Divides `episodes` over environments as evenly as possible."""
    self.total = episodes  # number of episodes to end
    self.episodes: list[envs.Episode] = []  # those that have ended
    self.cut: list[envs.Episode] = []  # those that were cut off
    self.max_steps = max_steps
    self._missing = [
      episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)
    ]

  @property
  def is_met(self) -> bool:
    """Whether all episodes have ended."""
    return len(self.episodes) == self.total

  def wants(self, env_id: int) -> bool:
    """Returns whether the environment's next episode counts."""
    return self._missing[env_id] > 0

  def add(self, episodes: Sequence[envs.Episode]) -> None:
    """Adds the episodes that count; each environment's come in order."""
    for episode in episodes:
      if self.wants(episode.env_id):
        self._missing[episode.env_id] -= 1
        self.episodes.append(episode)

  def cut_long(self, stream: envs.LocalStream) -> None:
    """Cuts off the episodes under way that have `max_steps`."""
    for env_id in filter(self.wants, range(stream.num_envs)):
      episode = stream.episode_so_far(env_id)
      if episode.length >= self.max_steps:
        self.cut.append(episode)
        self.total -= self._missing[env_id]
        self._missing[env_id] = 0


class WrappedStream(envs.EnvStream):
  """A stream that forwards to another one, which is local and synchronous."""

  def __init__(self, stream: envs.EnvStream):
    self.spec = stream.spec
    self.num_envs = stream.num_envs
    self.batch_size = self.min_batch_size = stream.batch_size
    self._stream = stream

  def recv(self) -> types.EnvOutput:
    return self._stream.recv()

  def send(self, action: np.ndarray, env_id: np.ndarray) -> None:
    self._stream.send(action, env_id)

  def take_episodes(self) -> list[envs.Episode]:
    return self._stream.take_episodes()

  def close(self) -> None:
    self._stream.close()


class ObservedStream(WrappedStream):
  """Counts episodes; records environment 0 while its episodes count."""

  def __init__(
    self,
    stream: envs.LocalStream,
    quota: EpisodeQuota,
    recorder: video.VideoRecorder | None = None,
  ):
    super().__init__(stream)
    self._local = stream
    self._quota = quota
    self._recorder = recorder

  def recv(self) -> types.EnvOutput:
    output = self._stream.recv()
    ended = self._stream.take_episodes()
    is_recorded = self._quota.wants(0)
    self._quota.add(ended)
    self._quota.cut_long(self._local)
    if self._recorder is not None and is_recorded:
      self._recorder.record(output, ended)
    return output


class Player(NamedTuple):
  """An agent with fixed acting parameters, on the host."""

  agent: agents.Agent
  params: agents.Params
  version: int  # is recorded with every step


def read_config(
  directory: workdir_lib.Workdir,
  allowed: Collection[str],
  flag: str = '--workdir',
  factory: str = '',
) -> types.Config:
  """Returns the configuration of a run, which another person may have made.

  `allowed` are flags, see `trust.check`; `flag` named the directory. A
  `factory` takes the place of the run's environments, and may run.

  Raises ValueError if it cannot be used.
  """
  config = directory.read_config(base_config.SAVED)
  if factory:
    config.env.factory = factory
    allowed = {*allowed, f'{trust.FACTORY_FLAG}={factory}'}
  trust.check(config.to_dict(), allowed, f'{flag}={directory.path}')
  agent_keys = dict(agents.allowed(config) or {})
  # Runs of earlier releases lack it.
  agent_keys.pop('network.popart', None)
  try:
    settings.check(config, _NEEDED | agent_keys, complete=False)
  except ValueError as e:
    raise ValueError(f'{directory.config_json}: {e}') from e
  return config


def load_player(
  directory: workdir_lib.Workdir,
  config: types.Config,
  env_spec: types.EnvSpec,
  number: int | str | None,
  line: progress.ProgressLine,
  flag: str = '--workdir',
) -> Player:
  """Returns the agent of a checkpoint, with its acting parameters.

  It was made with `config`. Its number may be 'best', that of
  `checkpoint.keep_best`; None is the newest that is intact. `flag` named the
  directory.

  Raises ValueError if there is none, or it is of another agent or network.
  """
  observations.check_release(directory, config.network, env_spec)
  agent = agents.load_agent(config, env_spec)
  message = f'{flag}={directory.path} holds no checkpoint'
  advice = ''
  folder = directory.checkpoints
  if number == 'best':
    folder, number = directory.best, None
    message = f'{flag}={directory.path} holds no best checkpoint'
    advice = '; --config.checkpoint.keep_best=True saves one'
  if not folder.is_dir():
    raise ValueError(f'{message} yet{advice}.')
  store = checkpoints.Checkpoints(folder, report=line.say, read_only=True)
  # Only shapes and dtypes matter; a broadcast zero takes no memory.
  template = jax.tree.map(
    lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape),
    agent.state_shapes(),
  )
  steps = store.steps()
  if number is not None:
    message += f' {number}'
    if number not in steps:
      best = ['best'] if directory.best.is_dir() else []
      names = ', '.join([*map(str, steps), *best]) or 'none'
      raise ValueError(f'{message}; there are: {names}.')
  checkpoint = store.restore(template, 'agent', number)
  if checkpoint is None:
    end = 'that is sound' if steps else 'yet'
    raise ValueError(f'{message} {end}.')
  params = agent.acting_params(checkpoint.state)
  return Player(agent, params, checkpoint.step)


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
  num_envs = stream.num_envs
  # By its run-wide ids, an agent explores.
  env_ids = np.arange(num_envs, dtype=np.int32)
  if options.sample:
    env_ids = env_ids * env_spec.num_envs // num_envs
  else:
    env_ids += env_spec.num_envs
  device = jax.local_devices()[0]
  key = jax.random.PRNGKey(options.seed)
  output = specs.output_spec(agent, stream.spec, params)
  step = device_step_lib.DeviceStep(
    agent, stream.spec, output, device, num_envs, key
  )
  published = jax.device_put(params, device)
  return worker_lib.InferenceWorker(
    stream=stream,
    device_step=step,
    sink=sink,
    parameters=lambda: (version, published),
    global_env_id=env_ids,
  )


def play(
  worker: worker_lib.InferenceWorker,
  quota: EpisodeQuota,
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
        f'{len(quota.episodes)}/{quota.total} episodes | {steps} steps',
        len(quota.episodes) / quota.total,
      )
  if quota.cut:
    line.say(
      f'{len(quota.cut)} episodes were cut off at --max_steps='
      f'{quota.max_steps}; their environments played no others.'
    )


def mean_text(returns: np.ndarray) -> str:
  """Returns mean and standard error of returns `[episodes]` as text."""
  text = f'return {returns.mean():.2f}'
  if len(returns) > 1:
    error = returns.std(ddof=1) / np.sqrt(len(returns))
    text += f' ± {error:.2f} (mean ± standard error)'
  return text
