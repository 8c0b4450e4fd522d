"""Measures the Reverb store under R2D2's load: long, overlapping sequences."""

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import jax
import ml_collections
import numpy as np

from seedrl_jax.lab.benchmarks import environments, timing
from seedrl_jax.lab.benchmarks import replay as replay_benchmark
from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import store as reverb_store
from seedrl_jax.run import parts as parts_lib

# Number of different steps, which then repeat.
_PERIOD = 1000


def measure(
  config: ml_collections.ConfigDict, windows: timing.Windows
) -> Iterator[dict[str, str]]:
  """Yields a table row of sequences per second.

  `config` is of R2D2 on Pong. The table is filled once, a part in each window.

  Raises:
    ReverbError: if the server does not start, or is lost.
  """
  parts = parts_lib.build(config, environments.free_streams(config))
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

  def __init__(self, table: replay.Table, overlap: int):
    """Consecutive sequences share `overlap` steps."""
    self._table, self._overlap = table, overlap
    self._rng = rng = np.random.default_rng(0)
    unroll = table.allocate().unroll
    self.length, self.width = unroll.steps.reward.shape
    steps = jax.tree.map(
      lambda x: rng.uniform(0, 3, (_PERIOD, *x.shape[1:])).astype(x.dtype),
      unroll.steps,
    )
    frames = replay_benchmark.pong_frames(rng, _PERIOD, self.width)
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
