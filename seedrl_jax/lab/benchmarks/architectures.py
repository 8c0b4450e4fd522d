"""Runs the field's architectures on the same tasks and processors.

Each is a run of the ordinary programs; figures come from its metrics.csv.
"""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax import types
from seedrl_jax.lab.plots import curves
from seedrl_jax.runtime import bound_child

_LAUNCH = pathlib.Path(__file__).parents[2] / 'launch'
_POLL_SECONDS = 0.2
# Episodes of random actions that R2D3 learns from, too.
_DEMONSTRATIONS = 10
# What a recording needs of a run's configuration.
_PLAYED = ('env.', 'network.')


class Architecture(NamedTuple):
  """An architecture as it runs here.

  Attributes:
    acts: who runs the network that acts.
    holds: who holds the parameters that are trained.
    travels: what goes from process to process.
    program: 'train' or 'train_async'.
    config: name of the configuration for CartPole and Pong.
    lander: of that for LunarLander.
    actors: 'central' or 'local' inference of an actor process; '' for none.
    values: of keys of both configurations.
  """

  acts: str
  holds: str
  travels: str
  program: str
  config: str
  lander: str
  actors: str = ''
  values: Mapping[str, Any] = {}


_OWN = ('the learner, alternating', 'the learner', 'nothing', 'train')
_MEMORY = (
  'each worker',
  'shared memory',
  'gradients, parameters (in memory)',
  'train_async',
)
_SERVER = (
  'each worker',
  'server in shards',
  'gradients, parameters',
  'train_async',
)
_UNROLLS = ('each actor', 'the learner', 'unrolls, parameters', 'train')
_STEPS = ('the learner', 'the learner', 'observations, actions', 'train')
_ALONE = ('the learner', 'the learner', 'nothing', 'train')
_DQN = ('dqn_cartpole', 'concurrent/dqn')
_A2C = ('a2c_cartpole', 'concurrent/a3c')
_VTRACE = ('vtrace_cartpole', 'concurrent/vtrace')
_R2D2 = ('r2d2_cartpole', 'concurrent/r2d2')
ARCHITECTURES: dict[str, Architecture] = {
  'DQN': Architecture(*_OWN, *_DQN),
  'GORILA': Architecture(
    *_SERVER,
    'gorila_cartpole',
    'concurrent/dqn',
    values={'asynchronous.share': 'server'},
  ),
  'A3C': Architecture(*_MEMORY, 'a3c_cartpole', 'concurrent/a3c'),
  'Hogwild! DQN': Architecture(*_MEMORY, *_DQN),
  'PAAC, A2C': Architecture(*_OWN, *_A2C),
  'IMPALA': Architecture(*_UNROLLS, *_VTRACE, 'local'),
  'Ape-X': Architecture(*_UNROLLS, 'apex_cartpole', 'apex_cartpole', 'local'),
  'R2D2': Architecture(*_UNROLLS, *_R2D2, 'local'),
  'R2D3': Architecture(
    *_UNROLLS, *_R2D2, 'local', values={'demonstrations.fraction': 0.25}
  ),
  'SEED, V-trace': Architecture(*_STEPS, *_VTRACE, 'central'),
  'SEED, R2D2': Architecture(*_STEPS, *_R2D2, 'central'),
  'SEED in one process': Architecture(*_ALONE, *_VTRACE),
  'Dyna-Q': Architecture(*_OWN, 'dyna_q_cartpole', 'concurrent/dyna_q'),
}


class Task(NamedTuple):
  """What an architecture is run on.

  Attributes:
    values: of keys of its configuration.
    target: mean return of 100 episodes that ends a run; None: the time does.
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


class Ran(NamedTuple):
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
) -> Ran:
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
  path, log = workdir / 'demonstrations', workdir / 'record.log'
  command = [
    'record.py',
    f'--config={config}',
    f'--out={path}',
    f'--policy={__name__}:random_actions',
    f'--episodes={_DEMONSTRATIONS}',
    *_flags({k: v for k, v in values.items() if k.startswith(_PLAYED)}),
  ]
  with _program(command, log) as recording:
    if recording.wait():
      raise RuntimeError(_last_line(log))
  return str(path)


def random_actions(
  env_spec: types.EnvSpec, seed: int
) -> Callable[[types.EnvOutput], np.ndarray]:
  """Returns a policy for launch/record.py."""
  rng, count = np.random.default_rng(seed), env_spec.action.num_values
  return lambda step: rng.integers(count, size=step.reward.shape)


def _flags(values: Mapping[str, Any]) -> list[str]:
  return [f'--config.{key}={value}' for key, value in values.items()]


def _last_line(log: pathlib.Path) -> str:
  return log.read_text().strip().splitlines()[-1]


def _figures(columns: Mapping[str, np.ndarray], target: float | None) -> Ran:
  last = {name: float(column[-1]) for name, column in columns.items()}
  # Staleness is the mean so far, policy lag that since the last report.
  lag = last.get('asynchronous/staleness_mean')
  if lag is None:
    # A report without an update has none.
    lag = float(np.nanmean(columns['replay/policy_lag_mean_batches']))
  frames = max(last['time/env_frames'], 1.0)
  moved = ('actors/stream_bytes', 'actors/store_bytes', 'asynchronous/bytes')
  is_solved = target is not None and last['rollout/return'] >= target
  return Ran(
    frames / max(last['time/elapsed_s'], 1e-9),
    sum(last.get(name, 0.0) for name in moved) / frames,
    lag,
    last['time/elapsed_s'] if is_solved else None,
  )


def _train(
  architecture: Architecture,
  config: str,
  values: Mapping[str, Any],
  workdir: pathlib.Path,
  limit: float,
) -> None:
  """Runs the learner, and an actor if it has one, to the end."""
  learner = [f'{architecture.program}.py', f'--config={config}']
  with contextlib.ExitStack() as stack:
    if architecture.actors:
      actor = [
        'actor.py',
        f'--learner=unix:{workdir}/a',
        '--envs_per_group=16',
        f'--inference={architecture.actors}',
      ]
      stack.enter_context(_program(actor, workdir / 'actor.log'))
    log = workdir / 'learner.log'
    learner += [f'--workdir={workdir}', *_flags(values)]
    running = stack.enter_context(_program(learner, log))
    while _trained_seconds(workdir) < limit:
      with contextlib.suppress(subprocess.TimeoutExpired):
        running.wait(_POLL_SECONDS)
        break
    running.terminate()
    if running.wait():
      raise RuntimeError(_last_line(log))


def _trained_seconds(workdir: pathlib.Path) -> float:
  try:
    return float(curves.read_run(workdir).columns['time/elapsed_s'][-1])
  except ValueError:
    # There is no report yet.
    return 0.0


@contextlib.contextmanager
def _program(
  command: list[str], log: pathlib.Path
) -> Iterator[subprocess.Popen[bytes]]:
  """Yields a running program of launch/, which ends at the end."""
  name, *flags = command
  with log.open('wb') as file:
    process = subprocess.Popen(
      [
        sys.executable,
        bound_child.__file__,
        str(os.getpid()),
        '',
        sys.executable,
        str(_LAUNCH / name),
        *flags,
      ],
      stdout=file,
      stderr=file,
    )
  try:
    yield process
  finally:
    process.terminate()
    process.wait()


def measure(
  name: str, tasks: Mapping[str, Task], seconds: float, limit: float, cores: int
) -> dict[str, str]:
  """Returns an architecture's row: its parts, and its figures on tasks.

  A run without a target takes `seconds`, one with a target `limit` at most.
  """
  architecture = ARCHITECTURES[name]
  row = {
    'architecture': name,
    'acts': architecture.acts,
    'parameters': architecture.holds,
    'between processes': architecture.travels,
  }
  for task_name, task in tasks.items():
    frames, moved = f'{task_name}, frames/s', f'{task_name}, B/frame'
    try:
      ran = run(architecture, task, limit if task.target else seconds, cores)
    except RuntimeError as e:
      # Dyna-Q, for one, has no model of images.
      print(f'{name} on {task_name}: {e}', file=sys.stderr)
      row |= {frames: '–', moved: '–'}
      continue
    row[frames] = f'{ran.frames_per_second:,.0f}'
    row[moved] = f'{ran.bytes_per_frame:,.0f}'
    row.setdefault('lag', f'{ran.lag:.2f}')
    if task.target is not None:
      until = f'> {limit:g}' if ran.seconds is None else f'{ran.seconds:,.0f}'
      row[f'{task_name} {task.target:g}, s'] = until
  return row
