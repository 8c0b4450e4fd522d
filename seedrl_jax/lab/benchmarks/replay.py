"""Measures replays on Reverb.

Compares our client with the official one on the same server. Each is a process,
as the official one needs a Python of its own; they alternate, so that drift of
the machine's speed favours neither. The store is measured under R2D2's load:
long, overlapping sequences.
"""

import contextlib
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

import jax
import ml_collections
import numpy as np

from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import environments, replay_clients, timing
from seedrl_jax.replay import base, table_configs
from seedrl_jax.replay.reverb.client import store as reverb_store
from seedrl_jax.replay.reverb.server import server
from seedrl_jax.run import opening

DATA = ('frames', 'random')
MODES = ('insert', 'sample', 'both')
STREAMS = (1, 2, 4)

# A block, as our store writes it: 8 unrolls of 20 steps.
_WIDTH, _STEPS = 8, 20
# Different blocks, and the tables' capacity.
_BLOCKS, _SIZE = 16, 64
# Steps of Pong to skip, as they show an empty field.
_SKIPPED = 60
# Number of different steps, which then repeat.
_PERIOD = 1000
_ROOT = pathlib.Path(__file__).parents[3]


def measure(python: str, windows: timing.Windows) -> Iterator[tables.Row]:
  """Yields a table row for each combination; rates are of uncompressed data.

  Args:
    python: an interpreter that has Reverb.
    windows: about how long to measure.

  Raises:
    ReverbError: if the server does not start.
    RuntimeError: if a client fails.
  """
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(
      stack.enter_context(tempfile.TemporaryDirectory(prefix='seedrl-bench-'))
    )
    paths = _make_data(folder)
    running = stack.enter_context(server.ReverbServer(python, _tables()))
    running.start()
    programs = {
      'ours': [sys.executable, '-m', replay_clients.__name__],
      # By path, as the package is not installed there.
      'official': [python, replay_clients.__file__],
    }
    clients = {
      name: stack.enter_context(
        ClientProcess([*program, name, running.address], folder / name)
      )
      for name, program in programs.items()
    }
    for data, path in paths.items():
      clients['ours'].run(path, 'fill', 1, _SIZE)
      for mode in MODES:
        for streams in STREAMS:
          row = {'data': data, 'mode': mode, 'streams': str(streams)}
          yield row | _measure(clients, path, mode, streams, windows)


def _tables() -> list[dict[str, Any]]:
  rules = {
    'max_size': _SIZE,
    'priority_exponent': 0.0,
    'samples_per_insert': 1.0,
    'min_size_to_sample': 1,
  }
  free = {'min_diff': -1e300, 'max_diff': 1e300}
  # As in `reverb.Table.queue`.
  queue = {'min_diff': 0.0, 'max_diff': float(_SIZE)}
  kept = {'sampler': 'uniform', 'max_times_sampled': 0, **rules, **free}
  once = {'sampler': 'fifo', 'max_times_sampled': 1, **rules, **queue}
  return [
    {'name': 'kept', **kept},
    {'name': 'dropping', **kept},
    {'name': 'queue', **once},
  ]


def _make_data(folder: pathlib.Path) -> dict[str, str]:
  """Writes blocks with random bytes and with Pong's frames; returns paths."""
  rng = np.random.default_rng(0)
  leading = (_BLOCKS, _STEPS, _WIDTH)
  columns: dict[str, Any] = {
    'action': rng.integers(0, 6, leading, np.int32),
    'logits': rng.normal(size=(*leading, 6)).astype(np.float32),
    'reward': np.zeros(leading, np.float32),
  }
  played = pong_frames(rng, _BLOCKS * _STEPS, _WIDTH)
  frames = {
    'frames': played.reshape(_BLOCKS, _STEPS, *played.shape[1:]),
    'random': rng.integers(0, 256, (*leading, 84, 84, 1), np.uint8),
  }
  paths = {name: str(folder / f'{name}.npz') for name in DATA}
  for name, path in paths.items():
    np.savez(path, **columns, frame=frames[name])
  return paths


def pong_frames(rng: np.random.Generator, steps: int, width: int) -> np.ndarray:
  """Returns frames of random play, uint8 `[steps, width, 84, 84, 1]`."""
  import envpool

  env = envpool.make_gymnasium('Pong-v5', num_envs=width, stack_num=1)
  env.reset()
  frames = np.empty((steps, width, 84, 84, 1), np.uint8)
  for step in range(-_SKIPPED, steps):
    observation = env.step(rng.integers(0, 6, width, np.int32))[0]
    if step >= 0:
      frames[step] = observation.transpose(0, 2, 3, 1)
  env.close()
  return frames


class ClientProcess:
  """Runs `replay_clients`; a context."""

  def __init__(self, command: Sequence[str], log: pathlib.Path):
    """`log` takes what the process says."""
    self._log = log
    with log.open('w') as file:
      self._process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=file,
        text=True,
        cwd=_ROOT,
      )

  def run(self, path: str, mode: str, streams: int, count: int) -> float:
    """Runs `replay_clients.run` there; returns its seconds."""
    command = {'data': path, 'mode': mode, 'streams': streams, 'count': count}
    assert self._process.stdin and self._process.stdout
    self._process.stdin.write(json.dumps(command) + '\n')
    self._process.stdin.flush()
    if not (answer := self._process.stdout.readline()):
      log_text = self._log.read_text()[-2000:]
      raise RuntimeError(f'A client ended by itself: {log_text}')
    return float(answer)

  def __enter__(self) -> 'ClientProcess':
    return self

  def __exit__(self, *error: object) -> None:
    self._process.kill()
    self._process.communicate()


def _measure(
  clients: dict[str, ClientProcess],
  path: str,
  mode: str,
  streams: int,
  windows: timing.Windows,
) -> tables.Row:
  size = sum(array.nbytes for array in replay_clients.load(path)[0])
  counts = {}
  for name, client in clients.items():
    client.run(path, mode, streams, 4 * streams)
    seconds = client.run(path, mode, streams, _SIZE)
    share = _SIZE * windows.seconds / seconds / streams
    counts[name] = streams * max(4, round(share))
  # MB/s.
  rates: dict[str, list[float]] = {name: [] for name in clients}
  for _ in range(windows.number):
    for name, client in clients.items():
      seconds = client.run(path, mode, streams, counts[name])
      rates[name].append(counts[name] * size / seconds / 1e6)
  row = {f'{name}, MB/s': tables.spread(rates[name]) for name in clients}
  ratios = np.divide(rates['ours'], rates['official'])
  return {**row, 'ours / official': f'{statistics.median(ratios):.2f}'}


def measure_sequences(
  config: ml_collections.ConfigDict, windows: timing.Windows
) -> Iterator[tables.Row]:
  """Yields a table row of sequences per second.

  `config` is of R2D2 on Pong. The table is filled once, a part in each window.

  Raises:
    ReverbError: if the server does not start, or is lost.
  """
  parts = opening.build(config, environments.free_streams(config))
  with contextlib.closing(parts):
    assert isinstance(parts.store, reverb_store.ReverbStore)
    table = parts.store.table(table_configs.TABLE)
    source = _Source(table, parts.agent.overlap)
    # One part more, to warm up.
    size = config.replay.max_size // (windows.number + 1)

    def fill() -> int:
      count = sum(source.insert() for _ in range(-(-size // source.width)))
      parts.store.flush()
      return count

    inserted = timing.measure(fill, windows._replace(seconds=0.0))
    sampler = table.sampler(config.batch_size)

    def draw(new_priorities: bool) -> int:
      sample = sampler.sample()
      if new_priorities:
        sample.update_priorities(np.ones(config.batch_size))
      sample.release()
      return config.batch_size

    sampled = timing.measure(functools.partial(draw, False), windows)
    stop = threading.Event()
    with futures.ThreadPoolExecutor(1, 'bench-writer') as executor:
      writing = executor.submit(_keep_inserting, source, stop)
      try:
        both = timing.measure(functools.partial(draw, True), windows)
      finally:
        stop.set()
      yield {
        'inserted/s': inserted.text(),
        'sampled/s': sampled.text(),
        'both: inserted/s': f'{writing.result():,.0f}',
        'both: sampled/s, with new priorities': both.text(),
      }


class _Source:
  """Inserts sequences of environments that step together."""

  def __init__(self, table: base.Table, overlap: int):
    """Consecutive sequences share `overlap` steps."""
    self._table, self._overlap = table, overlap
    self._rng = rng = np.random.default_rng(0)
    unroll = table.allocate().unroll
    self.length, self.width = unroll.steps.reward.shape
    steps = jax.tree.map(
      lambda x: rng.uniform(0, 3, (_PERIOD, *x.shape[1:])).astype(x.dtype),
      unroll.steps,
    )
    frames = pong_frames(rng, _PERIOD, self.width)
    self._steps = steps._replace(
      observation=frames.reshape(steps.observation.shape)
    )
    self._core = jax.tree.map(
      lambda x: rng.normal(size=x.shape).astype(x.dtype), unroll.initial_core
    )
    self._first = 0

  def insert(self) -> int:
    """Inserts the next block; returns its number of sequences."""
    block = self._table.allocate()
    index = np.arange(self._first, self._first + self.length)
    self._first += self.length - self._overlap
    for leaf, out in zip(
      *map(jax.tree.leaves, (self._steps, block.unroll.steps)), strict=True
    ):
      np.take(leaf, index, axis=0, out=out, mode='wrap')
    for leaf, out in zip(
      *map(jax.tree.leaves, (self._core, block.unroll.initial_core)),
      strict=True,
    ):
      out[...] = leaf
    block.unroll.env_id[:] = np.arange(self.width)
    self._table.insert(block, self._rng.uniform(size=self.width))
    return self.width


def _keep_inserting(source: _Source, stop: threading.Event) -> float:
  """Inserts until `stop`; returns sequences per second."""
  start = time.perf_counter()
  # At least once, even if this thread starts late.
  inserted = source.insert()
  while not stop.is_set():
    inserted += source.insert()
  return inserted / (time.perf_counter() - start)
