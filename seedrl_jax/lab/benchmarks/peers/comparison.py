"""Compares the system with other libraries, in alternating runs.

Each run is a process of its own, so that none holds cores or memory of another.
All get the same network, unroll length and cores, and, if the peer has it, the
same environment.
"""

import contextlib
import json
import math
import multiprocessing
import os
import pathlib
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import timing, whole
from seedrl_jax.lab.benchmarks.peers import library, settings
from seedrl_jax.runtime import process

# Seconds that a peer may need to start and to stop.
_PATIENCE = 600.0


class Task(NamedTuple):
  """What to compare.

  Attributes:
    config: of the system.
    peer_config: of the peers; the same unless they lack its environment.
    target: mean return to reach; None compares steps per second.
    limit: seconds to learn that in.
    turns: runs of each side; the seed of the nth is n.
  """

  name: str
  config: ml_collections.ConfigDict
  peer_config: ml_collections.ConfigDict
  target: float | None
  limit: float
  windows: timing.Windows
  turns: int


class Side(NamedTuple):
  """A peer as it is fastest."""

  command: Sequence[str]
  version: str
  choice: dict[str, Any]


def measure(task: Task, peers: Sequence[str]) -> Iterator[tables.Row]:
  """Runs all sides alternately; yields a table row for each peer.

  Args:
    peers: keys of `library.PEERS`.

  Raises:
    system.RunFailed: if the system fails.
  """
  sides: dict[str, Side] = {}
  failed: dict[str, str] = {}
  for name in peers:
    with _noting(name, failed):
      sides[name] = _prepare(task, name)
  pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
  for turn in range(task.turns if sides else 0):
    ours = _time_ours(task, turn + 1)
    _say(f'{task.name}: ours', ours)
    for name in [name for name in sides if name not in failed]:
      with _noting(name, failed):
        theirs = _time_theirs(task, name, sides[name], turn + 1)
        pairs[name].append((ours, theirs))
        _say(f'{task.name}: {name}', theirs)
  for name in peers:
    yield _row(task, name, sides.get(name), pairs[name], failed.get(name))


@contextlib.contextmanager
def _noting(name: str, failed: dict[str, str]) -> Iterator[None]:
  """Notes why a peer fails; the others go on."""
  try:
    yield
  except library.PeerFailed as e:
    failed[name] = str(e)
    print(f'{name}: {e}', flush=True)


def _prepare(task: Task, name: str) -> Side:
  """Installs a peer and tries all choices; returns the fastest."""
  peer = library.PEERS[name]
  command = library.install(name)
  windows = task.windows._replace(number=1)
  client_settings = _settings(task, name) | {
    'target': None,
    'windows': list(windows),
  }
  rates: list[float] = []
  for choice in peer.choices:
    (rate,), version = _call(
      command, peer.client, client_settings | choice, _PATIENCE
    )
    _say(f'{task.name}: {name}, {_describe(choice)}', rate)
    rates.append(rate)
  return Side(command, version, peer.choices[rates.index(max(rates))])


def _settings(task: Task, name: str) -> dict[str, Any]:
  client_settings = settings.make(task.peer_config, task.windows)
  if task.target is None:
    return client_settings
  learning = library.PEERS[name].learning
  return (
    client_settings | learning | {'target': task.target, 'limit': task.limit}
  )


def _time_theirs(task: Task, name: str, side: Side, seed: int) -> float:
  client_settings = _settings(task, name) | side.choice | {'seed': seed}
  number, seconds, warm_up = task.windows
  busy = task.limit if task.target else number * seconds + warm_up
  client = library.PEERS[name].client
  figures, _ = _call(side.command, client, client_settings, busy + _PATIENCE)
  return statistics.median(figures) if figures else math.inf


def _call(
  command: Sequence[str],
  client: str,
  client_settings: Mapping[str, Any],
  timeout: float,
) -> tuple[Sequence[float], str]:
  """Runs a client; returns its figures and its library's version.

  Raises:
    library.PeerFailed: with the last line of its output.
  """
  inherited = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
  # Libraries write into the current folder.
  with (
    tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    open(os.path.join(folder, 'log'), 'w+') as log,
    subprocess.Popen(
      [*command, client],
      stdin=subprocess.PIPE,
      stdout=log,
      stderr=log,
      text=True,
      cwd=folder,
      env=inherited,
      start_new_session=True,
    ) as running,
  ):
    try:
      running.communicate(json.dumps(client_settings), timeout)
    except subprocess.TimeoutExpired as e:
      raise library.PeerFailed(f'it did not end within {timeout:g} s') from e
    finally:
      # Also its own processes.
      with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    if running.returncode:
      log.seek(0)
      raise library.PeerFailed(log.read().rstrip().rpartition('\n')[2])
    result = json.loads(pathlib.Path(folder, 'result.json').read_text())
    return result['figures'], result['version']


def _time_ours(task: Task, seed: int) -> float:
  spawn = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(1, spawn, process.configure) as executor:
    return executor.submit(_run_ours, task, seed).result()


def _run_ours(task: Task, seed: int) -> float:
  config = task.config
  config.seed = seed
  if task.target is None:
    case = whole.Case(task.name, config)
    return whole.run(case, task.windows).steps.median
  return whole.seconds_to(config, task.target, task.limit) or math.inf


def _row(
  task: Task,
  name: str,
  side: Side | None,
  pairs: Sequence[tuple[float, float]],
  why: str | None,
) -> tables.Row:
  """Returns a table row; a ratio above 1 is in the system's favour."""
  row = {
    'case': task.name,
    'unit': f'seconds to {task.target:g}' if task.target else 'steps/s',
    'ours': '–',
    'peer': f'{name} {side.version}' if side else name,
    'its': '–',
    'ratio': '–',
    'its fastest, or what failed': why or '',
  }
  if pairs:
    ours, theirs = zip(*pairs, strict=True)
    ratios = [b / a if task.target else a / b for a, b in pairs]
    digits = 1 if task.target else 0
    row['ours'] = tables.spread(ours, digits)
    row['its'] = tables.spread(theirs, digits)
    row['ratio'] = tables.spread(ratios, 1)
  if side and not why:
    row['its fastest, or what failed'] = _describe(side.choice)
  return row


def _describe(choice: Mapping[str, Any]) -> str:
  ((name, value),) = choice.items()
  return f'{name} {value}' if value else f'default {name}'


def _say(what: str, figure: float) -> None:
  print(f'{what}: {figure:,.1f}', flush=True)
