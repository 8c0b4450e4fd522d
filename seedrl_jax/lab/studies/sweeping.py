"""Runs the trials of a grid as processes on this machine."""

import collections
import itertools
import operator
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import ml_collections

from seedrl_jax.configs import base as base_config
from seedrl_jax.lab import launching
from seedrl_jax.lab.studies import commands, results
from seedrl_jax.runtime import process, progress
from seedrl_jax.runtime import workdir as workdir_lib

_LOG = 'train.log'
_POLL_SECONDS = 0.2
# Between progress lines on a terminal, and in a file.
_LIVE_SECONDS, _FILE_SECONDS = 2.0, 60.0
# Of the end of metrics.csv, for its last row.
_TAIL = 1 << 16
# What all runs together take of a GPU's memory.
_GPU_SHARE = 0.9
# A finished run may have other values of these.
_ANY = ('total_env_frames', 'log.', 'checkpoint.')
# Commas outside of brackets.
_COMMA = re.compile(r',(?![^(\[{]*[)\]}])')


def grid(
  sets: Sequence[str], seeds: Sequence[int]
) -> Iterator[Mapping[str, str]]:
  """Yields each combination of values, by key; seeds vary fastest.

  Args:
    sets: 'KEY=VALUE,VALUE'; commas within brackets do not separate.

  Raises:
    ValueError: if one is of another form, or repeats a key or a value.
  """
  axes: dict[str, list[str]] = {}
  for text in sets:
    key, _, values = text.partition('=')
    axes[key] = _COMMA.split(values)
    if not key or not all(axes[key]):
      raise ValueError(f'--set={text}: write it as --set=KEY=VALUE,VALUE.')
  axes['seed'] = [str(seed) for seed in seeds]
  if len(axes) <= len(sets):
    raise ValueError('--set: name each key once, and give seeds by --seeds.')
  for combination in itertools.product(*axes.values()):
    yield dict(zip(axes, combination, strict=True))


class Trial(NamedTuple):
  """A run of the grid.

  Attributes:
    program: 'train' or 'train_async', of launch/.
    arguments: of that program.
  """

  workdir: workdir_lib.Workdir
  config: ml_collections.ConfigDict
  program: str
  arguments: Sequence[str]

  @property
  def name(self) -> str:
    return self.workdir.path.name

  @property
  def log(self) -> pathlib.Path:
    return self.workdir.path / _LOG

  def is_finished(self) -> bool:
    return results.is_finished(
      results.read_summary(self.workdir),
      self.frames(),
      self.config.total_env_frames,
      self.config.target_return,
    )

  def frames(self) -> float:
    """Returns the frames so far."""
    try:
      with self.workdir.metrics_csv.open('rb') as file:
        column = file.readline().split(b',').index(results.FRAMES.encode())
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL))
        return float(file.read().split(b'\n')[-2].split(b',')[column])
    except (OSError, ValueError, IndexError):
      # No row yet.
      return 0.0

  def check(self) -> None:
    """Raises ValueError if the folder has links, or a run of another kind."""
    self.workdir.refuse_links()
    if not self.workdir.config_json.exists():
      return
    old = self.workdir.read_config(base_config.SAVED)
    if self.program == 'train_async':
      # That program sets it.
      old.deterministic = self.config.deterministic
    differing = [
      f'{key}: {a} -> {b}'
      for key, a, b in commands.changes(old, self.config)
      if not key.startswith(_ANY)
    ]
    if differing:
      raise ValueError(
        f'{self.workdir.path} has a run of another configuration '
        f'({"; ".join(differing)}); undo that, or choose another --workdir.'
      )


def make_trial(
  folder: pathlib.Path,
  program: str,
  name: str,
  base: ml_collections.ConfigDict,
  config: ml_collections.ConfigDict,
) -> Trial:
  """Returns a run in `folder`; `base` is the configuration called `name`."""
  changes = commands.flags(base, config)
  arguments = commands.train(name, changes, str(folder))
  return Trial(workdir_lib.Workdir(folder), config, program, arguments)


def folder_name(
  config: ml_collections.ConfigDict, keys: Iterable[str], name: str = ''
) -> str:
  """Returns what a run's folder is called: 'key=value,key=value'.

  `name` comes first, if the sweep has several configurations.
  """
  values = [f'config={name}'] if name else []
  values += [f'{key}={operator.attrgetter(key)(config)}' for key in keys]
  return re.sub(r'[^\w.,=()+-]', '_', ','.join(values))


class Sweep:
  """Runs trials side by side, each on its share of the processors.

  Attributes:
    failed: why trials ended by themselves without finishing, by name.
    is_stopping: whether no more trials start.
  """

  def __init__(
    self, trials: Sequence[Trial], parallel: int, line: progress.ProgressLine
  ):
    self._trials = trials
    self._shares = shares(sorted(os.sched_getaffinity(0)), parallel)
    self._line = line
    self._running: dict[int, tuple[Trial, subprocess.Popen[bytes]]] = {}
    self._shown = 0.0
    self.failed: dict[str, str] = {}
    self.is_stopping = False

  def stop(self, number: int = 0, frame: types.FrameType | None = None) -> None:
    """Asks `run` to end the trials; a handler of signals."""
    del frame
    self.is_stopping = True
    # A second Ctrl-C ends the process at once, and so its children.
    if number == signal.SIGINT:
      signal.signal(number, signal.SIG_DFL)

  def run(self) -> None:
    """Runs the unfinished trials, until all have ended."""
    waiting = collections.deque(t for t in self._trials if not t.is_finished())
    has_terminated = False
    while self._running or waiting:
      for slot in {*range(len(self._shares))} - {*self._running}:
        if waiting and not self.is_stopping:
          trial = waiting.popleft()
          self._running[slot] = trial, self._launch(slot, trial)
          self._shown = 0.0
      self._show()
      time.sleep(_POLL_SECONDS)
      if self.is_stopping and not has_terminated:
        # They save a last checkpoint.
        for _, running in self._running.values():
          running.terminate()
        waiting.clear()
        has_terminated = True
      for slot, (trial, running) in list(self._running.items()):
        if running.poll() is not None:
          del self._running[slot]
          self._note_end(trial, running.returncode)
    self._show()

  def _launch(self, slot: int, trial: Trial) -> subprocess.Popen[bytes]:
    trial.workdir.path.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)
    if len(self._shares) > 1:
      # JAX takes three quarters of a GPU's memory otherwise.
      share = f'{_GPU_SHARE / len(self._shares):.3f}'
      environment.setdefault('XLA_PYTHON_CLIENT_MEM_FRACTION', share)
    with trial.log.open('ab') as log:
      return launching.start(
        trial.program,
        trial.arguments,
        self._shares[slot],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # Of its own, as Ctrl-C goes to this process alone.
        process_group=0,
      )

  def _note_end(self, trial: Trial, code: int) -> None:
    self._shown = 0.0
    if trial.is_finished():
      self._line.say(f'{trial.name}: {_returns(trial)}')
    if trial.is_finished() or self.is_stopping:
      return
    why = f'exit code {code}' if code else 'stopped before its end'
    self.failed[trial.name] = f'{why}, see {trial.log}'
    self._line.say(f'{trial.name}: {self.failed[trial.name]}')

  def _show(self) -> None:
    """Shows the progress, if it is time to."""
    now, is_live = time.monotonic(), sys.stdout.isatty()
    if now < self._shown + (_LIVE_SECONDS if is_live else _FILE_SECONDS):
      return
    self._shown = now
    done = finished = sum(trial.is_finished() for trial in self._trials)
    parts = [f'{finished}/{len(self._trials)} runs finished']
    if self.failed:
      parts.append(f'{len(self.failed)} failed')
    for trial, _ in self._running.values():
      frames, total = trial.frames(), trial.config.total_env_frames
      done += min(1.0, frames / total)
      counts = '/'.join(map(progress.format_count, (frames, total)))
      parts.append(f'{trial.name}: {counts} frames')
    self._line.update(' | '.join(parts), done / max(1, len(self._trials)))


def _returns(trial: Trial) -> str:
  """Returns what a finished trial reached, as text."""
  summary = results.read_summary(trial.workdir)
  keys = 'mean_return_100', 'eval_mean_return'
  training, evaluation = (progress.decimal(summary.get(k), 1) for k in keys)
  return f'finished with return {training} (eval {evaluation})'


def run(
  folder: workdir_lib.Workdir,
  trials: Sequence[Trial],
  parallel: int,
  line: progress.ProgressLine,
) -> Sweep:
  """Runs the unfinished trials in a folder; returns the sweep at its end.

  A second sweep of the folder cannot start meanwhile. Signals stop this one.

  Raises:
    OSError, ValueError: if the folder cannot be used.
  """
  with folder.acquire(line.say):
    sweep = Sweep(trials, parallel, line)
    process.on_stop(sweep.stop)
    sweep.run()
  return sweep


def shares(processors: Sequence[int], parallel: int) -> list[str]:
  """Divides processors, as '0,1'; more trials than these share them."""
  count = len(processors)
  starts = [i * count // parallel for i in range(parallel + 1)]
  return [
    ','.join(str(p) for p in processors[a : max(b, a + 1)])
    for a, b in itertools.pairwise(starts)
  ]
