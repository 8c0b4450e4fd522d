"""Runs for tests: a tiny configuration, toys, and programs as processes."""

import contextlib
import csv
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import chex
import gymnasium
import jax
import ml_collections
import numpy as np
from gymnasium import spaces

from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import base as envs
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.envs import step_checks
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.run import opening, system
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import file_io, progress, report
from tests import forked
from tests.patience import PATIENCE

ROOT = pathlib.Path(__file__).resolve().parents[1]
SUMMARY_KEYS = {
  'env_frames',
  'env_steps',
  'seconds',
  'frames_per_second',
  'updates',
  'mean_return_100',
  'eval_mean_return',
  'policy_lag_mean',
  'status',
}
# Columns of metrics.csv that summary.json has, too.
COLUMNS = {
  'env_frames': 'time/env_frames',
  'env_steps': 'time/env_steps',
  'seconds': 'time/elapsed_s',
  'updates': 'time/updates',
  'mean_return_100': 'rollout/return',
}


def documented_columns() -> set[str]:
  """Returns the names in the documentation's table of the metrics."""
  text = (ROOT / 'docs/metrics.md').read_text()
  rows = re.findall(r'^\| `(\w+/)` \|(.*)\|$', text, re.M)
  return {g + n for g, names in rows for n in re.findall('`(.*?)`', names)}


_TINY = {
  'env.id': 'Catch-v0',
  'env.num_envs': 4,
  'num_eval_envs': 0,
  'unroll_length': 5,
  'batch_size': 4,
  'network.hidden_sizes': (8,),
  'total_env_frames': 400,
  'topology.max_devices': 1,
  'log.writers': ('csv',),
  'replay.backend': 'embedded',
  # A busy machine may take long to restart a server.
  'replay.patience': 600.0,
}


def set_keys(config: ml_collections.ConfigDict, **values: Any) -> None:
  """Sets keys of a configuration; `__` stands for a dot."""
  for name, value in values.items():
    section, _, key = name.replace('__', '.').rpartition('.')
    (config[section] if section else config)[key] = value


def tiny(
  make: Callable[[], ml_collections.ConfigDict] = base_config.get_config,
  /,
  **values: Any,
) -> ml_collections.ConfigDict:
  """Returns the smallest configuration that `make` has, with `values`."""
  config = make()
  set_keys(config, **{k.replace('.', '__'): v for k, v in _TINY.items()})
  set_keys(config, **values)
  return config


def toy(name: str, **kwargs: Any) -> dict[str, Any]:
  """Returns values for `tiny` that select an environment of this file."""
  return {
    'env__factory': f'tests.runs:{name}',
    'env__factory_kwargs': ml_collections.ConfigDict(kwargs),
  }


def open_parts(
  config: ml_collections.ConfigDict, **kwargs: Any
) -> opening.Parts:
  """Opens the parts of a new run; for `kwargs` see `opening.Opener`."""
  plan = plan_lib.make_plan(config)
  return opening.Opener(plan, plan.initial_state(), **kwargs).open()


def children(pid: int) -> list[int]:
  """Returns the processes that a process has started."""
  tasks = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
  return [int(x) for path in tasks for x in path.read_text().split()]


class Run:
  """A run in this process, and its output."""

  def __init__(
    self,
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    profile_updates: int = 0,
    make_streams: Callable[[int, layout_lib.StreamShare], envs.EnvStream]
    | None = None,
    on_report: Callable[[report.Summary], Any] | None = None,
    **start: Any,
  ):
    self._out = io.StringIO()
    self.workdir = workdir
    self.system = system.System(
      config,
      workdir,
      profile_updates,
      make_streams,
      progress.ProgressLine(self._out),
      on_report=on_report,
      **start,
    )
    self.initial_state = self.system.parts.learner.state()

  @property
  def output(self) -> str:
    return self._out.getvalue()

  def train(self) -> dict[str, Any]:
    return self.system.train()._asdict()

  @property
  def params(self) -> Any:
    return self.system.parts.learner.state().agent.params


def train_reproducibly(
  config: ml_collections.ConfigDict, folder: pathlib.Path
) -> Run:
  """Trains twice with seed 1, in a and b, and with seed 2; returns the first.

  Only equal seeds must give equal parameters; `config` has seed 1 afterwards.
  """
  trained = []
  for seed, name in (2, 'c'), (1, 'b'), (1, 'a'):
    config.seed = seed
    trained.append(Run(config, folder / name))
    trained[-1].train()
  c, b, a = trained
  chex.assert_trees_all_equal(a.params, b.params)
  same = jax.tree.map(np.array_equal, a.params, c.params)
  assert not all(jax.tree.leaves(same))
  return a


def summary(workdir: pathlib.Path) -> dict[str, Any]:
  return json.loads((workdir / 'summary.json').read_text())


def rows(workdir: pathlib.Path) -> list[dict[str, str]]:
  path = workdir / 'metrics.csv'
  text = path.read_text() if path.exists() else ''
  # The last line may be incomplete.
  return list(csv.DictReader(text[: text.rfind('\n') + 1].splitlines()))


def column(workdir: pathlib.Path, name: str) -> list[float]:
  return [float(row[name]) for row in rows(workdir)]


def check_cartpole_episodes(workdir: pathlib.Path) -> None:
  """Checks that each return is the episode's length: every reward is 1."""
  last = rows(workdir)[-1]
  mean_return = summary(workdir)['mean_return_100']
  assert mean_return == float(last['rollout/length_steps'])
  assert float(last['rollout/episodes']) > 0


def steps(workdir: pathlib.Path) -> list[int]:
  """Numbers of the checkpoints in a work directory."""
  return file_io.numbers_in(workdir / 'checkpoints')


def open_files() -> set[str]:
  """Returns the files that this process has open."""
  targets = set()
  for number in os.listdir('/proc/self/fd'):
    # One was for listing them.
    with contextlib.suppress(FileNotFoundError):
      targets.add(os.readlink(f'/proc/self/fd/{number}'))
  return targets


# Set when an environment of this process never returns.
HANGS = threading.Event()


class Pixels(gymnasium.Env):
  """Images in which one action pays; episodes last six steps.

  From step `bad_after` on, it fails as `failure` says: rewards are 'huge' or
  'nan', `step` raises OSError ('raise'), or it never returns ('hang').
  """

  def __init__(self, bad_after: int = 1 << 30, failure: str = ''):
    self.observation_space = spaces.Box(0, 255, (6, 6, 1), np.uint8)
    self.action_space = spaces.Discrete(3)
    self._bad_after = bad_after
    self._failure = failure
    self._total = 0
    self._step = 0

  def _observe(self) -> np.ndarray:
    return self.np_random.integers(0, 255, (6, 6, 1), np.uint8)

  def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
    super().reset(**kwargs)
    self._step = 0
    return self._observe(), {}

  def step(
    self, action: Any
  ) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
    self._step += 1
    self._total += 1
    reward = float(action == 1)
    if self._total >= self._bad_after:
      if self._failure == 'raise':
        raise OSError('The toy is broken.')
      if self._failure == 'hang':
        HANGS.set()
        threading.Event().wait()
      reward = {'huge': step_checks.LARGEST_REWARD, 'nan': np.nan}[
        self._failure
      ]
    return self._observe(), reward, self._step == 6, False, {}


def pixels(**kwargs: Any) -> gymnasium.Env:
  return Pixels(**kwargs)


class Streams:
  """Makes the configured streams and records which of them were closed."""

  def __init__(
    self, config: ml_collections.ConfigDict, fail_at: int | None = None
  ):
    """Raises ValueError for the stream `fail_at`."""
    self._config = config
    self._fail_at = fail_at
    self.closed: set[int] = set()

  def __call__(
    self, index: int, share: layout_lib.StreamShare
  ) -> envs.EnvStream:
    if index == self._fail_at:
      raise ValueError('--config.env: this stream cannot be had.')
    stream = env_factory.make_stream(
      self._config.env,
      seed=index,
      num_envs=len(share.global_env_id),
      batch_size=share.batch_size,
    )
    close = stream.close

    def record() -> None:
      self.closed.add(index)
      close()

    stream.close = record
    return stream


def environment_of(own: Mapping[str, str]) -> dict[str, str]:
  """Returns the variables of a program that a test starts."""
  ours = {'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu'}
  return {**os.environ, **ours, **own}


def call(
  program: str,
  *flags: str,
  cwd: pathlib.Path | None = None,
  **environment: str,
) -> subprocess.CompletedProcess[str]:
  """Runs launch/PROGRAM.py to its end."""
  command = [ROOT / f'launch/{program}.py', *flags]
  return forked.call(command, cwd=cwd, env=environment_of(environment))


def refusal(program: str, *flags: str) -> str:
  """Returns the sentence with which launch/PROGRAM.py refuses its flags."""
  result = call(program, *flags)
  assert result.returncode == 1 and result.stderr.count('\n') == 1, result
  return result.stderr.removesuffix('\n')


class Program:
  """A program of launch/ as a process, read line by line.

  Attributes:
    started: those of the running test, which `tests.conftest` ends.
  """

  started: ClassVar[list['Program']] = []

  def __init__(
    self,
    workdir: pathlib.Path,
    *flags: str,
    script: str = 'train.py',
    omit: Collection[str] = (),
    config: str | None = 'base',
    is_forked: bool = True,
    **environment: str,
  ):
    """Starts it; without `config` it goes on with the run's own.

    Without `is_forked`, Python starts, which takes longer; see `tests.forked`.
    """
    self._workdir = workdir
    tiny_flags = [
      f'--config.{k}={v}' for k, v in _TINY.items() if k not in omit
    ]
    command = [
      ROOT / 'launch' / script,
      *([f'--config={ROOT}/configs/{config}.py'] if config else []),
      f'--workdir={workdir}',
      *tiny_flags,
      '--config.log.every_seconds=0.05',
      *flags,
    ]
    start = forked.Popen if is_forked else subprocess.Popen
    self.process = start(
      command if is_forked else [sys.executable, *command],
      env=environment_of(environment),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    self.started.append(self)
    self.lines: list[str] = []

  def wait_for(self, pattern: str) -> re.Match[str]:
    """Reads until a line matches."""
    assert self.process.stdout is not None
    for line in self.process.stdout:
      self.lines.append(line)
      if match := re.search(pattern, line):
        return match
    raise AssertionError(f'No {pattern!r} in {self.lines}; {self.end()}')

  def wait_for_updates(self, count: int = 1) -> int:
    """Reads until a report has `count` updates; returns the newest number."""
    while True:
      self.wait_for(' updates')
      # The line may be old, and rounds the number; rows come after it.
      last = rows(self._workdir)[-1:]
      updates = int(float(last[0]['time/updates'])) if last else 0
      if updates >= count:
        return updates

  def end(self) -> tuple[int, str]:
    """Waits for the end; returns exit code and standard error."""
    out, err = self.process.communicate(timeout=PATIENCE)
    self.lines += out.splitlines(keepends=True)
    return self.process.returncode, err
