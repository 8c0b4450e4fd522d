"""The Python interface: configure, train, evaluate, and use a policy.

  seedrl_jax.train('ppo_mujoco', 'runs/ant', env__id='Ant-v5')
  policy = seedrl_jax.load_policy('runs/ant')

All names are attributes of the package; importing it imports no JAX.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import ml_collections

from seedrl_jax.envs import trust
from seedrl_jax.run import callbacks
from seedrl_jax.runtime import (
  config_files,
  process,
  progress,
  report,
  settings,
)
from seedrl_jax.runtime import workdir as workdir_lib

Report = callbacks.Report
StopAtReturn = callbacks.StopAtReturn
StopWithoutImprovement = callbacks.StopWithoutImprovement

if TYPE_CHECKING:
  import gymnasium

  from seedrl_jax.configs.base import Config
  from seedrl_jax.evaluation import env_check, scoring
  from seedrl_jax.evaluation import policy as policy_lib

_Path = str | os.PathLike[str]
# Takes a report; returns False to stop the run.
OnReport = Callable[[callbacks.Report], Any]
# Makes an environment: a class, a function or a lambda.
MakeEnv = Callable[..., Any]
# What is allowed to run: functions, or what the error names.
Allowed = Sequence[str | Callable[..., Any]]

# Flags are arguments here.
_FLAG = re.compile(r'(?<![\w=-])--(?=[a-z])')
# At the end of an error.
_PERMISSIONS = re.compile(r"'?--allow_.*$")


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
  return _override(config_files.load(name), overrides)


def _override(
  config: ml_collections.ConfigDict, overrides: dict[str, Any]
) -> ml_collections.ConfigDict:
  config = config.copy_and_resolve_references()
  for key, value in overrides.items():
    config_files.set_key(config, key.replace('__', '.'), value)
  return config


def train(
  config: ml_collections.ConfigDict | str | None,
  workdir: _Path,
  on_report: OnReport | Sequence[OnReport] | None = None,
  *,
  env: MakeEnv | None = None,
  allowed: Allowed = (),
  init_from: _Path | None = None,
  init_optimizer: bool = False,
  **overrides: Any,
) -> report.Summary:
  """Trains, or goes on with what is in `workdir`; returns the summary.

  Ctrl-C, or interrupting a notebook's cell, stops the run cleanly with a last
  checkpoint: then `status` is 'stopped'. A second one does not wait for it.

  Args:
    config: of `make_config`, or its name; None is that of the run in `workdir`.
      By a name, a run that has a checkpoint keeps its own values, with which
      the file must agree.
    workdir: folder for checkpoints, curves and summary.
    on_report: called with a `callbacks.Report` every `log.every_seconds`, in
      this thread; if it returns False the run stops. `SystemExit` or
      `KeyboardInterrupt` in it stops the run, too; it is raised again after the
      last checkpoint. Several functions are called in their order.
    env: a class or function that makes an environment, in place of `env.id`;
      called with `env.factory_kwargs`.
    allowed: functions that only the configuration in `workdir` names and that
      may run, or their names.
    init_from: work directory of another run, whose parameters a new run begins
      with; agent, network and spaces must be the same.
    init_optimizer: whether the optimiser's state is taken, too.
    **overrides: values of keys, as of `make_config`.

  Raises:
    ValueError: if the configuration does not fit the work directory.
    RuntimeError: if the run fails; it can be resumed if it had a checkpoint.
      Or in a process that was forked from one that has used JAX.
  """
  with _python_words():
    with process.without_collection():
      process.configure()
      from seedrl_jax.run import system
    whole = _whole_config(config, workdir, allowed, overrides, env)
    call = callbacks.call_all(on_report)
    run = system.System(
      whole,
      workdir,
      on_report=call,
      line=_Line(),
      init_from=init_from,
      init_optimizer=init_optimizer,
    )
    with _interrupts_call(run.stop):
      return run.train()


def _whole_config(
  config: ml_collections.ConfigDict | str | None,
  workdir: _Path,
  allowed: Allowed,
  overrides: dict[str, Any],
  env: MakeEnv | None,
) -> ml_collections.ConfigDict:
  if env is not None:
    overrides = {**overrides, 'env__factory': _reference(env)}
  if isinstance(config, ml_collections.ConfigDict):
    return _override(config, overrides)
  from seedrl_jax.run import saved_config

  directory = workdir_lib.Workdir(workdir)
  saved = saved_config.read(directory, has_file=config is not None)
  if saved is None:
    # Without a run, reading says so.
    new = directory.read_config() if config is None else make_config(config)
    return _override(new, overrides)
  names = [key.replace('__', '.') for key in overrides]
  whole = _override(saved, overrides)
  file = None if config is None else config_files.load(config)
  saved_config.check_resume(
    directory, saved, whole, names, file, config or '', _flags(allowed)
  )
  return whole


def _reference(env: MakeEnv) -> str:
  if not callable(env):
    raise ValueError(
      f'env={env!r:.99}: give a class, or a function that makes an '
      "environment, as env=lambda: …; one with a name is env__id='…'."
    )
  return settings.reference(env)


def _flags(allowed: Allowed) -> list[str]:
  flags = []
  for item in allowed:
    name = item if isinstance(item, str) else settings.reference(item)
    if name.startswith('--'):
      flags.append(name)
    else:
      is_function = re.fullmatch(r'[\w.]+:\w+', name)
      flag = trust.FACTORY_FLAG if is_function else trust.OPTION_FLAG
      flags.append(f'{flag}={name}')
  return flags


@contextlib.contextmanager
def _python_words() -> Iterator[None]:
  """Makes errors name arguments, where the command line has flags."""
  try:
    yield
  except (ValueError, RuntimeError, ImportError) as e:
    e.args = tuple(_words(x) if isinstance(x, str) else x for x in e.args)
    raise


def _words(text: str) -> str:
  """Returns a message with arguments in place of flags."""
  if permissions := _PERMISSIONS.search(text):
    flags = shlex.split(permissions[0].rstrip('.'))
    names = [flag.partition('=')[2] for flag in flags]
    text = f'{text[: permissions.start()]}allowed={names}.'
  text = text.replace('Leave --config out', 'Give config=None')
  return _FLAG.sub('', text)


class _Line(progress.ProgressLine):
  """Names keys of the configuration as Python does."""

  def say(self, text: str) -> None:
    super().say(text.replace('--config.', 'config.'))


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
  checkpoint: int | Literal['best'] | None = None,
  video: _Path | None = None,
  allowed: Allowed = (),
  max_steps: int = settings.EPISODE,
  env: MakeEnv | None = None,
) -> scoring.Evaluation:
  """Plays episodes with a run's checkpoint; its environments are installed.

  Args:
    workdir: of the run, which may still be training.
    episodes: how many.
    sample: acts as training environments do, not greedily.
    seed: of environments and policy.
    checkpoint: its number, or 'best', of `checkpoint.keep_best`; None: the
      newest.
    video: file (.mp4 or .gif) to show the first environment in.
    allowed: code from outside of this package that may run: functions, or what
      the error without them names.
    max_steps: steps after which an episode is cut off; it counts with its
      return so far, and its environment plays no others.
    env: makes an environment in place of the run's, as of `train`.

  Raises:
    ValueError: if run, checkpoint or options cannot be used.
  """
  process.configure()
  from seedrl_jax.evaluation import scoring

  with _python_words():
    options = scoring.EvaluationOptions(
      episodes=episodes,
      sample=sample,
      seed=seed,
      checkpoint=checkpoint,
      video=pathlib.Path(video) if video else None,
      allowed=tuple(_flags(allowed)),
      max_steps=max_steps,
      factory='' if env is None else _reference(env),
    )
    return scoring.evaluate(workdir, options, _Line())


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
  step: int | Literal['best'] | None = None,
  sample: bool = False,
  seed: int = 0,
  allowed: Allowed = (),
  env: MakeEnv | None = None,
) -> policy_lib.Policy:
  """Returns the policy of a checkpoint; needs no environments.

  Args:
    workdir: of the run, which may still be training.
    step: number of the checkpoint, or 'best'; None: the newest.
    sample: acts as training environments do, not greedily.
    seed: of the policy.
    allowed: see `evaluate`.
    env: what made the run's environments; needs no permission then.

  Raises:
    ValueError: if there is no such checkpoint.
  """
  from seedrl_jax.evaluation import policy as policy_lib

  with _python_words():
    factory = '' if env is None else _reference(env)
    player, spec = policy_lib.load(workdir, step, _flags(allowed), factory)
  return policy_lib.Policy(player, spec, sample, seed)
