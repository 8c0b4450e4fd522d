"""Compares central with local inference (IMPALA's), through Reverb."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.actors import handshake
from seedrl_jax.benchmarks import actors, timing, whole
from seedrl_jax.run import build

# Updates before the first window.
_UPDATES = 3
_POLL = 0.05


class _Counts(NamedTuple):
  """A run's counters at one moment."""

  seconds: float
  env_steps: int
  updates: int
  stream_bytes: int
  store_bytes: int
  lag_sum: float
  lag_updates: int


def measure(
  case: whole.Case,
  num_actors: int,
  envs_per_actor: int,
  windows: timing.Windows,
) -> Iterator[dict[str, Any]]:
  """Yields the figures of either mode, with remote environments and Reverb.

  Raises:
    system.RunFailed: if the run failed.
  """
  num_envs = num_actors * envs_per_actor
  config = _remote_config(case.config, num_envs)
  for inference in handshake.INFERENCE:
    with (
      whole.running(config) as (run, thread),
      actors.ActorProcesses(_serving(run.parts).addresses[0]) as processes,
    ):
      for _ in range(num_actors):
        processes.start(envs_per_actor, f'--inference={inference}')
      _wait_until_training(run.parts, thread, processes)
      figures = _watch(run.parts, thread, processes, windows)
    yield {
      'case': case.name,
      'inference': inference,
      'actors': num_actors,
      'envs': num_envs,
      **figures,
    }


def _remote_config(
  config: ml_collections.ConfigDict, num_envs: int
) -> ml_collections.ConfigDict:
  """Returns the configuration with remote environments and Reverb."""
  config = config.copy_and_resolve_references()
  config.env.num_envs = 0
  config.actors.max_envs = num_envs
  # One unroll of every environment, so that no block waits for more.
  config.batch_size = num_envs
  config.replay.backend = 'reverb'
  config.topology.inference_affinity_offset = -1
  # Keeps the run's reports from resetting the largest policy lag.
  config.log.every_seconds = 1e9
  return config


def header() -> list[str]:
  """Returns the table's head."""
  return [
    '| case | inference | actors x envs | frames/s | updates/s '
    '| actors and learner, MB/s | actors to Reverb, MB/s '
    '| policy lag, mean | largest |',
    '|---|---|---|---|---|---|---|---|---|',
  ]


def line(row: dict[str, Any]) -> str:
  """Returns a row of `measure` as a table row."""
  return (
    f'| {row["case"]} | {row["inference"]} '
    f'| {row["actors"]} x {row["envs"] // row["actors"]} '
    f'| {timing.Timing(**row["frames"]).text()} '
    f'| {row["updates_per_second"]:.1f} '
    f'| {row["stream_bytes_per_second"] / 1e6:.2f} '
    f'| {row["store_bytes_per_second"] / 1e6:.2f} '
    f'| {row["lag_mean"]:.1f} | {row["lag_max"]} |'
  )


def _wait_until_training(
  parts: build.Parts,
  thread: threading.Thread,
  processes: actors.ActorProcesses,
) -> None:
  while thread.is_alive() and (
    _serving(parts).num_connected < parts.env_spec.num_envs
    or parts.learner.counters.updates < _UPDATES
  ):
    processes.check()
    time.sleep(_POLL)


def _watch(
  parts: build.Parts,
  thread: threading.Thread,
  processes: actors.ActorProcesses,
  windows: timing.Windows,
) -> dict[str, Any]:
  whole.wait(thread, windows.warm_up)
  parts.learner.take_lag_max()
  counts = [_count(parts)]
  for _ in range(windows.number):
    whole.wait(thread, windows.seconds)
    processes.check()
    counts.append(_count(parts))
  lag_max = parts.learner.take_lag_max()
  return _figures(counts, parts.env_spec.action_repeat) | {'lag_max': lag_max}


def _serving(parts: build.Parts) -> Any:
  assert parts.actors is not None
  return parts.actors


def _count(parts: build.Parts) -> _Counts:
  serving, learner = _serving(parts), parts.learner.counters
  return _Counts(
    seconds=time.perf_counter(),
    env_steps=parts.env_steps(),
    updates=learner.updates,
    stream_bytes=serving.num_bytes,
    store_bytes=serving.reported.store_bytes,
    lag_sum=learner.lag_sum,
    lag_updates=learner.lag_updates,
  )


def _figures(counts: list[_Counts], action_repeat: int) -> dict[str, Any]:
  """Returns the rates between the first and the last count."""
  rates = [
    (b.env_steps - a.env_steps) * action_repeat / (b.seconds - a.seconds)
    for a, b in itertools.pairwise(counts)
  ]
  first, last = counts[0], counts[-1]
  total = last.seconds - first.seconds
  updates = last.lag_updates - first.lag_updates
  return {
    # CPU cost is unknown here, as several processes share the work.
    'frames': timing.summarize(rates, [0.0])._asdict(),
    'updates_per_second': (last.updates - first.updates) / total,
    'stream_bytes_per_second': (last.stream_bytes - first.stream_bytes) / total,
    'store_bytes_per_second': (last.store_bytes - first.store_bytes) / total,
    'lag_mean': (last.lag_sum - first.lag_sum) / max(1, updates),
  }
