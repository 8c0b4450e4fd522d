"""Runs the field's architectures on the same tasks and processors.

Each is a run of the ordinary programs; figures come from its metrics.csv.
docs/architectures.md says who acts and who holds the parameters in each.
"""

import contextlib
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.lab import launching, tables
from seedrl_jax.lab.plots import curves

_POLL_SECONDS = 0.2
# Episodes of random actions that R2D3 learns from, too.
_DEMONSTRATIONS = 10
# What a recording needs of a run's configuration.
_PLAYED = ('env.', 'network.')


class Architecture(NamedTuple):
  """An architecture as it runs here.

  Attributes:
    program: 'train' or 'train_async'.
    config: name of the configuration for CartPole and Pong.
    lander: of that for LunarLander.
    actors: 'central' or 'local' inference of an actor process; '' for none.
    values: of keys of both configurations.
  """

  program: str
  config: str
  lander: str
  actors: str = ''
  values: Mapping[str, Any] = {}


_DQN = ('dqn_cartpole', 'concurrent/dqn')
_A2C = ('a2c_cartpole', 'concurrent/a3c')
_VTRACE = ('vtrace_cartpole', 'concurrent/vtrace')
_R2D2 = ('r2d2_cartpole', 'concurrent/r2d2')
ARCHITECTURES: dict[str, Architecture] = {
  'DQN': Architecture('train', *_DQN),
  'GORILA': Architecture(
    'train_async',
    'gorila_cartpole',
    'concurrent/dqn',
    values={'asynchronous.share': 'server'},
  ),
  'A3C': Architecture('train_async', 'a3c_cartpole', 'concurrent/a3c'),
  'Hogwild! DQN': Architecture('train_async', *_DQN),
  'PAAC, A2C': Architecture('train', *_A2C),
  'IMPALA': Architecture('train', *_VTRACE, 'local'),
  'Ape-X': Architecture('train', 'apex_cartpole', 'apex_cartpole', 'local'),
  'R2D2': Architecture('train', *_R2D2, 'local'),
  'R2D3': Architecture(
    'train', *_R2D2, 'local', values={'demonstrations.fraction': 0.25}
  ),
  'SEED, V-trace': Architecture('train', *_VTRACE, 'central'),
  'SEED, R2D2': Architecture('train', *_R2D2, 'central'),
  'SEED in one process': Architecture('train', *_VTRACE),
  'Dyna-Q': Architecture('train', 'dyna_q_cartpole', 'concurrent/dyna_q'),
}


class Task(NamedTuple):
  """What an architecture is run on.

  Attributes:
    values: of keys of its configuration.
    target: mean return of 100 episodes that ends a run; None for no target.
    is_lander: whether it takes the configuration for LunarLander.
  """

  values: Mapping[str, Any]
  target: float | None = None
  is_lander: bool = False


TASKS: dict[str, Task] = {
  'CartPole': Task({}, 475.0),
  'Pong, tiny': Task({
    'env.id': 'Pong-v5',
    'env.frame_skip': 4,
    'network.torso': 'tiny',
    'network.frame_stack': 4,
  }),
  'LunarLander': Task({'env.id': 'LunarLander-v2'}, 200.0, is_lander=True),
}


class Figures(NamedTuple):
  """Figures of a run.

  Attributes:
    frames_per_second: over the whole training.
    bytes_per_frame: that went between processes.
    lag: mean policy lag in batches, or staleness of gradients in versions.
    seconds: of training until the target; None if it was not reached.
  """

  frames_per_second: float
  bytes_per_frame: float
  lag: float
  seconds: float | None


def run(
  architecture: Architecture, task: Task, limit: float, cores: int
) -> Figures:
  """Trains until the target, or for `limit` seconds, without compilation.

  Raises:
    RuntimeError: if the run fails.
  """
  config = architecture.lander if task.is_lander else architecture.config
  values = {
    **architecture.values,
    **task.values,
    'log.every_seconds': 0.5,
    'log.writers': "('csv',)",
    'num_eval_envs': 0,
    'total_env_frames': 10**9,
    'optimizer.schedule': 'constant',
  }
  if task.target is not None:
    values['target_return'] = task.target
  if architecture.program == 'train_async':
    values['asynchronous.workers'] = cores
  with tempfile.TemporaryDirectory(prefix='seedrl-') as folder:
    workdir = pathlib.Path(folder)
    if 'demonstrations.fraction' in values:
      values['demonstrations.path'] = _record(config, values, workdir)
    if architecture.actors:
      values |= _remote(architecture, workdir)
    _train(architecture, config, values, workdir, limit)
    columns = curves.read_run(workdir).columns
  return _figures(columns, task.target)


def _remote(
  architecture: Architecture, workdir: pathlib.Path
) -> dict[str, Any]:
  """Returns values with which an actor has all environments."""
  return {
    'env.num_envs': 0,
    'actors.max_envs': 32,
    'actors.addresses': f"('unix:{workdir}/a',)",
    'actors.local_inference': architecture.actors == 'local',
  }


def _record(
  config: str, values: Mapping[str, Any], workdir: pathlib.Path
) -> str:
  """Records episodes of random actions; returns their folder."""
  path = workdir / 'demonstrations'
  flags = [
    f'--config={config}',
    f'--out={path}',
    f'--policy={__name__}:random_actions',
    f'--episodes={_DEMONSTRATIONS}',
    *_flags({k: v for k, v in values.items() if k.startswith(_PLAYED)}),
  ]
  with _run('record', flags, workdir) as recording:
    recording.wait()
  return str(path)


def random_actions(
  env_spec: types.EnvSpec, seed: int
) -> Callable[[types.EnvOutput], np.ndarray]:
  """Returns a policy for seedrl record."""
  rng, count = np.random.default_rng(seed), env_spec.action.num_values
  return lambda step: rng.integers(count, size=step.reward.shape)


def _flags(values: Mapping[str, Any]) -> list[str]:
  return [f'--config.{key}={value}' for key, value in values.items()]


def _train(
  architecture: Architecture,
  config: str,
  values: Mapping[str, Any],
  workdir: pathlib.Path,
  limit: float,
) -> None:
  """Runs the learner, and an actor if it has one, to the end."""
  flags = [f'--config={config}', f'--workdir={workdir}', *_flags(values)]
  with contextlib.ExitStack() as stack:
    if architecture.actors:
      actor_flags = [
        f'--learner=unix:{workdir}/a',
        '--envs_per_group=16',
        f'--inference={architecture.actors}',
      ]
      stack.enter_context(
        launching.running(
          'actor',
          actor_flags,
          stdout=subprocess.DEVNULL,
          stderr=subprocess.DEVNULL,
        )
      )
    learner = stack.enter_context(_run(architecture.program, flags, workdir))
    while _trained_seconds(workdir) < limit:
      with contextlib.suppress(subprocess.TimeoutExpired):
        learner.wait(_POLL_SECONDS)
        break


def _trained_seconds(workdir: pathlib.Path) -> float:
  try:
    return float(curves.read_run(workdir).columns['time/elapsed_s'][-1])
  except ValueError:
    # There is no report yet.
    return 0.0


@contextlib.contextmanager
def _run(
  program: str, flags: Sequence[str], workdir: pathlib.Path
) -> Iterator[subprocess.Popen[bytes]]:
  """Yields a program; raises RuntimeError at the end if it fails."""
  log = workdir / f'{program}.log'
  with (
    log.open('wb') as file,
    launching.running(program, flags, stdout=file, stderr=file) as process,
  ):
    yield process
  if process.returncode:
    raise RuntimeError(log.read_text().strip().splitlines()[-1])


def _figures(
  columns: Mapping[str, np.ndarray], target: float | None
) -> Figures:
  last = {name: float(column[-1]) for name, column in columns.items()}
  # Staleness is the mean so far, policy lag that since the last report.
  lag = last.get('asynchronous/staleness_mean')
  if lag is None:
    # A report without an update has none.
    lag = float(np.nanmean(columns['replay/policy_lag_mean_batches']))
  frames = max(last['time/env_frames'], 1.0)
  traffic = ('actors/stream_bytes', 'actors/store_bytes', 'asynchronous/bytes')
  is_solved = target is not None and last['rollout/return'] >= target
  return Figures(
    frames / max(last['time/elapsed_s'], 1e-9),
    sum(last.get(name, 0.0) for name in traffic) / frames,
    lag,
    last['time/elapsed_s'] if is_solved else None,
  )


def measure(
  name: str, tasks: Mapping[str, Task], seconds: float, limit: float, cores: int
) -> tables.Row:
  """Returns an architecture's row: its figures on tasks.

  A run without a target takes `seconds`, one with a target `limit` at most.
  """
  row = {'architecture': name}
  for task_name, task in tasks.items():
    frames, traffic = f'{task_name}, frames/s', f'{task_name}, B/frame'
    time_limit = limit if task.target else seconds
    try:
      figures = run(ARCHITECTURES[name], task, time_limit, cores)
    except RuntimeError as e:
      # Dyna-Q, for one, has no model of images.
      print(f'{name} on {task_name}: {e}', file=sys.stderr)
      row |= {frames: '–', traffic: '–'}
      continue
    row[frames] = f'{figures.frames_per_second:,.0f}'
    row[traffic] = f'{figures.bytes_per_frame:,.0f}'
    row.setdefault('lag', f'{figures.lag:.2f}')
    if task.target is not None:
      until = (
        f'> {limit:g}' if figures.seconds is None else f'{figures.seconds:,.0f}'
      )
      row[f'{task_name} {task.target:g}, s'] = until
  return row
