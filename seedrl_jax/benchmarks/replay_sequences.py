"""Measures the Reverb store under R2D2's load of long, overlapping sequences.

Shared steps are stored once, and for comparison with each sequence.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np

from seedrl_jax import types
from seedrl_jax.benchmarks import environments, timing
from seedrl_jax.envs import base as envs
from seedrl_jax.inference import specs
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import blocks, table_configs
from seedrl_jax.replay.reverb.client import server_location, store
from seedrl_jax.replay.reverb.server import checkpoint_files, server

_TABLE = 'replay'
# Seconds for a server to be found again, or to store what was sent.
_PATIENCE = 60.0
# Seconds between checks of the server's count.
_LOOK = 0.002
_ACTION = types.discrete(6)
# Number of different steps, which then repeat.
_PERIOD = 1000


@dataclasses.dataclass(frozen=True)
class Load:
  """What is written and drawn; by default SEED RL's R2D2 on Atari.

  That is sequences of 100 steps after 40 of burn-in, by which consecutive ones
  overlap (Espeholt et al. 2020, arXiv 1910.06591).

  Attributes:
    sequences: capacity of the table.
    steps: length of a sequence.
    overlap: steps that consecutive sequences of an environment share.
    width: number of environments, and sequences in a block.
    batch_size: sequences in a batch.
    core_size: size of each of an LSTM's two states.
  """

  sequences: int = 2000
  steps: int = 140
  overlap: int = 40
  width: int = 16
  batch_size: int = 64
  core_size: int = 512

  def spec(self) -> types.Unroll:
    """Returns the spec of a sequence."""
    core = types.ArraySpec((self.core_size,), np.dtype(np.float32))
    frame = types.ArraySpec((84, 84, 1), np.dtype(np.uint8))
    env = envs.StreamSpec(frame, _ACTION, 1, 'Pong')
    output = (
      types.ArraySpec(_ACTION.shape, _ACTION.dtype),
      types.ArraySpec((_ACTION.num_values,), np.dtype(np.float32)),
    )
    return specs.unroll_spec(env, self.steps - 1, output, (core, core))


class Source:
  """Fills blocks with sequences of environments that step together."""

  def __init__(self, load: Load):
    self._load = load
    self._rng = rng = np.random.default_rng(0)
    leading = (_PERIOD, load.width)
    self._leaves = [
      environments.pong_frames(rng, *leading),
      np.zeros(leading, np.float32),
      np.ones(leading, np.float32),
      np.full(leading, types.StepType.MID, np.uint8),
      _ACTION.sample(rng, *leading),
      _ACTION.sample(rng, *leading),
      rng.normal(size=(*leading, _ACTION.num_values)).astype(np.float32),
      np.zeros(leading, np.int32),
    ]
    shape = (load.width, load.core_size)
    self._core = rng.normal(size=shape).astype(np.float32)
    self._first = 0

  def fill(self, block: replay.Block) -> np.ndarray:
    """Writes the next sequences; returns their priorities, `[W]`."""
    load = self._load
    steps = np.arange(self._first, self._first + load.steps)
    self._first += load.steps - load.overlap
    for leaf, out in zip(self._leaves, block.leaves, strict=False):
      np.take(leaf, steps, axis=0, out=out, mode='wrap')
    for core in block.unroll.initial_core:
      core[...] = self._core
    block.unroll.env_id[:] = np.arange(load.width)
    return self._rng.uniform(size=load.width)


def measure(
  python: str, load: Load, windows: timing.Windows
) -> Iterator[dict[str, Any]]:
  """Yields the figures of both ways to store overlaps, ready for JSON.

  Fills the table once, in as many parts as there are windows.

  Raises:
    ReverbError: if a server does not start, or is lost.
  """
  source = Source(load)
  for stored, overlap in (('once', load.overlap), ('with each', 1)):
    with tempfile.TemporaryDirectory(prefix='seedrl-bench-') as folder:
      measurer = _Measurer(python, load, source, overlap, pathlib.Path(folder))
      yield {
        'case': 'r2d2',
        'overlap': stored,
        'load': dataclasses.asdict(load),
        **measurer.measure(windows),
      }


class _Measurer:
  """Measures a store that shares `overlap` steps; 1 shares none."""

  def __init__(
    self,
    python: str,
    load: Load,
    source: Source,
    overlap: int,
    folder: pathlib.Path,
  ):
    self._python = python
    self._load = load
    self._overlap = overlap
    self._folder = folder
    self._source = source
    self._rng = np.random.default_rng(1)

  def measure(self, windows: timing.Windows) -> dict[str, Any]:
    path = str(self._folder / 'checkpoint')
    layout = blocks.UnrollLayout(self._load.spec())
    result: dict[str, Any] = {
      'raw_bytes': self._load.sequences * layout.unroll_bytes
    }
    with contextlib.closing(self._make_store()) as made:
      empty = _resident_bytes(made)
      result['insert'] = self._insert(made, windows.number)._asdict()
      result['server_bytes'] = _resident_bytes(made) - empty
      result['checkpoint_seconds'] = _seconds(lambda: made.checkpoint(path))
      result['checkpoint_bytes'] = checkpoint_files.num_bytes(path)
      result['sample'] = self._sample(made, windows)._asdict()
      result['both'] = self._both(made, windows)
    with contextlib.closing(self._make_store()) as made:
      result['restore_seconds'] = _seconds(lambda: made.restore(path))
      result['restored'] = made.info()[_TABLE].size
    return result

  def _make_store(self) -> store.ReverbStore:
    load = self._load
    # Without a ratio, so that each side is as fast as it can be.
    config = table_configs.ReplayConfig(
      _TABLE, 'prioritized', load.sequences, samples_per_insert=0.0
    )

    def make_location(
      rules: Any, on_restart: server_location.OnRestart
    ) -> server_location.OwnServer:
      folder = str(self._folder / 'server')
      process = server.ReverbServer(self._python, rules, folder)
      return server_location.OwnServer(process, on_restart, _PATIENCE)

    return store.ReverbStore(
      [config],
      load.spec(),
      load.width,
      make_location,
      load.batch_size,
      self._overlap,
    )

  def _insert(self, made: store.ReverbStore, parts: int) -> timing.Timing:
    """Fills the table in `parts`; returns sequences per second."""
    writer = made.table(_TABLE)
    count = self._load.sequences // self._load.width
    parts = min(parts, count)
    edges = [count * i // parts for i in range(parts + 1)]
    rates, costs = [], []
    for first, end in itertools.pairwise(edges):
      cpu, start = time.process_time(), time.perf_counter()
      for _ in range(first, end):
        self._insert_block(writer)
      _wait_until_stored(made, end * self._load.width)
      inserted = (end - first) * self._load.width
      rates.append(inserted / (time.perf_counter() - start))
      costs.append((time.process_time() - cpu) / inserted)
    return timing.summarize(rates, costs)

  def _insert_block(self, writer: replay.TrajectoryWriter) -> int:
    block = writer.allocate()
    writer.insert(block, self._source.fill(block))
    return self._load.width

  def _sample(
    self, made: store.ReverbStore, windows: timing.Windows
  ) -> timing.Timing:
    sampler = made.table(_TABLE).sampler(self._load.batch_size)

    def work() -> int:
      sampler.sample().release()
      return self._load.batch_size

    return timing.measure(work, windows)

  def _both(
    self, made: store.ReverbStore, windows: timing.Windows
  ) -> dict[str, Any]:
    """Draws and updates priorities while another thread inserts."""
    sampler = made.table(_TABLE).sampler(self._load.batch_size)
    updates: list[float] = []

    def work() -> int:
      sample = sampler.sample()
      priorities = self._rng.uniform(size=self._load.batch_size)
      updates.append(
        _seconds(functools.partial(sample.update_priorities, priorities))
      )
      sample.release()
      return self._load.batch_size

    stop = threading.Event()
    with futures.ThreadPoolExecutor(1, 'bench-writer') as executor:
      writing = executor.submit(self._keep_inserting, made, stop)
      try:
        drawn = timing.measure(work, windows)
      finally:
        stop.set()
      inserted = writing.result()
    return {
      'insert': inserted,
      'sample': drawn._asdict(),
      'update_seconds': float(np.median(updates)),
    }

  def _keep_inserting(
    self, made: store.ReverbStore, stop: threading.Event
  ) -> float:
    """Inserts until `stop`; returns sequences per second."""
    writer = made.table(_TABLE)
    start = time.perf_counter()
    # At least once, even if this thread starts late.
    inserted = self._insert_block(writer)
    while not stop.is_set():
      inserted += self._insert_block(writer)
    return inserted / (time.perf_counter() - start)


def _seconds(function: Callable[[], object]) -> float:
  start = time.perf_counter()
  function()
  return time.perf_counter() - start


def _wait_until_stored(made: store.ReverbStore, count: int) -> None:
  deadline = time.monotonic() + _PATIENCE
  while True:
    table = made.location.link.peek()[_TABLE]
    if table.rate_limiter_info.insert_stats.completed >= count:
      return
    if time.monotonic() > deadline:
      raise TimeoutError(f'The server took no {count} sequences.')
    time.sleep(_LOOK)


def _resident_bytes(made: store.ReverbStore) -> int:
  assert isinstance(made.location, server_location.OwnServer)
  text = pathlib.Path(f'/proc/{made.location.pid}/status').read_text()
  line = next(x for x in text.splitlines() if x.startswith('VmRSS:'))
  return int(line.split()[1]) * 1024


def header(load: Load) -> list[str]:
  """Returns the table's head."""
  return [
    f'{load.sequences:,} sequences of {load.steps} steps x 84x84x1 uint8, '
    f'overlapping by {load.overlap}, core 2 x {load.core_size} '
    f'float32;\nblocks of {load.width}, batches of {load.batch_size}; '
    'sequences/s: median (min–max); MB: million bytes',
    '',
    '| overlaps stored | inserted | sampled | both: inserted | both: sampled '
    '| update, µs a batch | raw MB | server MB | checkpoint MB | saved, s '
    '| restored, s |',
    '|---|---|---|---|---|---|---|---|---|---|---|',
  ]


def lines(row: dict[str, Any]) -> list[str]:
  """Returns a row of `measure` as a table row."""
  both = row['both']
  return [
    f'| {row["overlap"]} | {timing.Timing(**row["insert"]).text()} '
    f'| {timing.Timing(**row["sample"]).text()} | {both["insert"]:,.0f} '
    f'| {timing.Timing(**both["sample"]).text()} '
    f'| {both["update_seconds"] * 1e6:,.0f} | {row["raw_bytes"] / 1e6:,.0f} '
    f'| {row["server_bytes"] / 1e6:,.0f} '
    f'| {row["checkpoint_bytes"] / 1e6:,.0f} '
    f'| {row["checkpoint_seconds"]:.1f} | {row["restore_seconds"]:.1f} |'
  ]
