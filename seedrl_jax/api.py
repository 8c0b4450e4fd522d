"""The Python interface: configure, train, evaluate, and use a policy.

  config = seedrl_jax.make_config('ppo_mujoco', env__id='Ant-v5')
  summary = seedrl_jax.train(config, 'runs/ant')
  policy = seedrl_jax.load_policy('runs/ant')

All names are attributes of the package; importing it imports no JAX.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import ml_collections

from seedrl_jax.runtime import config_files, process, progress, report, settings

if TYPE_CHECKING:
  import gymnasium

  from seedrl_jax.configs.base import Config
  from seedrl_jax.evaluation import env_check, scoring
  from seedrl_jax.evaluation import policy as policy_lib

_Path = str | os.PathLike[str]
# Takes a report; returns False to stop the run.
OnReport = Callable[[report.Summary], Any]


def make_config(name: str, **overrides: Any) -> Config:
  """Returns a configuration that may be changed before training.

  Args:
    name: of a shipped configuration, as 'ppo_mujoco', or a file's path.
    **overrides: values of keys; two underscores stand for the dot, as in
      `optimizer__learning_rate=1e-3`.

  Raises:
    ValueError: if there is no such configuration or key, or a value is of
      another type.
  """
  config = config_files.load(name)
  for key, value in overrides.items():
    config_files.set_key(config, key.replace('__', '.'), value)
  return config


def train(
  config: ml_collections.ConfigDict,
  workdir: _Path,
  on_report: OnReport | None = None,
) -> report.Summary:
  """Trains, or goes on with what is in `workdir`; returns the summary.

  Ctrl-C, or interrupting a notebook's cell, stops the run cleanly with a last
  checkpoint: then `status` is 'stopped'. A second one does not wait for it.

  Args:
    config: of `make_config`.
    workdir: folder for checkpoints, curves and summary.
    on_report: called with a `Summary` whose status is 'running', every
      `log.every_seconds`, in this thread; if it returns False the run stops.
      `SystemExit` or `KeyboardInterrupt` in it stops the run, too; it is
      raised again after the last checkpoint.

  Raises:
    ValueError: if the configuration does not fit the work directory.
    RuntimeError: if the run fails; it can be resumed if it had a checkpoint.
      Or in a process that was forked from one that has used JAX.
  """
  with process.without_collection():
    process.configure()
    from seedrl_jax.run import system
  run = system.System(config, workdir, on_report=on_report)
  with _interrupts_call(run.stop):
    return run.train()


@contextlib.contextmanager
def _interrupts_call(stop: Callable[[], None]) -> Iterator[None]:
  """Makes the first SIGINT call `stop`, if Python lets this thread do so."""
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  before = signal.getsignal(signal.SIGINT)

  def handle(*_: Any) -> None:
    signal.signal(signal.SIGINT, before)
    stop()

  signal.signal(signal.SIGINT, handle)
  try:
    yield
  finally:
    signal.signal(signal.SIGINT, before)


def evaluate(
  workdir: _Path,
  episodes: int = 20,
  sample: bool = False,
  seed: int = 0,
  checkpoint: int | None = None,
  video: _Path | None = None,
  allowed: Sequence[str] = (),
  max_steps: int = settings.EPISODE,
) -> scoring.Evaluation:
  """Plays episodes with a run's checkpoint; its environments are installed.

  Args:
    workdir: of the run, which may still be training.
    episodes: how many.
    sample: acts as training environments do, not greedily.
    seed: of environments and policy.
    checkpoint: its number; None: the newest.
    video: file (.mp4 or .gif) to show the first environment in.
    allowed: flags that allow code from outside of this package, as the error
      without them names them.
    max_steps: steps after which an episode is cut off; it counts with its
      return so far, and its environment plays no others.

  Raises:
    ValueError: if run, checkpoint or options cannot be used.
  """
  process.configure()
  from seedrl_jax.evaluation import scoring

  options = scoring.EvaluationOptions(
    episodes=episodes,
    sample=sample,
    seed=seed,
    checkpoint=checkpoint,
    video=pathlib.Path(video) if video else None,
    allowed=tuple(allowed),
    max_steps=max_steps,
  )
  return scoring.evaluate(workdir, options, progress.ProgressLine())


def check_env(
  environment: str
  | ml_collections.ConfigDict
  | gymnasium.Env
  | Callable[[], gymnasium.Env],
  episodes: int = 10,
  max_steps: int = 10_000,
  seed: int = 0,
) -> env_check.EnvReport:
  """Steps an environment with random actions and reports all of its faults.

  Args:
    environment: 'module:function' that makes it, the function, a configuration,
      or the environment itself, which is closed at the end.
    episodes: how many.
    max_steps: steps after which an episode is left.
    seed: of environment and actions.
  """
  from seedrl_jax.evaluation import env_check

  options = episodes, max_steps, seed
  if isinstance(environment, ml_collections.ConfigDict):
    return env_check.check(environment, *options)
  config = make_config('vtrace_cartpole')
  if isinstance(environment, str):
    config.env.factory = environment
    return env_check.check(config, *options)
  named = environment if hasattr(environment, '__name__') else type(environment)
  config.env.factory = f'{named.__module__}:{named.__name__}'
  make = environment if callable(environment) else lambda: environment
  return env_check.check(config, *options, make)


def load_policy(
  workdir: _Path,
  step: int | None = None,
  sample: bool = False,
  seed: int = 0,
  allowed: Sequence[str] = (),
) -> policy_lib.Policy:
  """Returns the policy of a checkpoint; needs no environments.

  Args:
    workdir: of the run, which may still be training.
    step: number of the checkpoint; None: the newest.
    sample: acts as training environments do, not greedily.
    seed: of the policy.
    allowed: see `evaluate`.

  Raises:
    ValueError: if there is no such checkpoint.
  """
  from seedrl_jax.evaluation import policy as policy_lib

  player, spec = policy_lib.load(workdir, step, allowed)
  return policy_lib.Policy(player, spec, sample, seed)
