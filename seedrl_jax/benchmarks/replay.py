"""Compares our Reverb client with the official one on the same server.

Each client is a process, to measure its memory and CPU time. They take turns
window by window, so that drift of the machine's speed favours neither.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from seedrl_jax.benchmarks import environments, replay_clients, timing
from seedrl_jax.replay.reverb.server import server

DATA = ('frames', 'random')
MODES = ('insert', 'sample', 'both')

# A block, as our store writes it: 8 unrolls of 20 steps.
_WIDTH, _STEPS = 8, 20
# Different blocks, and the tables' capacity.
_BLOCKS, _SIZE = 16, 64
_ROOT = pathlib.Path(__file__).parents[2]


def measure(
  python: str, windows: timing.Windows, streams: Sequence[int] = (1, 2, 4)
) -> Iterator[dict[str, Any]]:
  """Yields the figures of each combination, ready for JSON.

  Args:
    python: an interpreter that has Reverb.
    windows: about how long to measure.
    streams: numbers of writers and of sample streams.

  Raises:
    ReverbError: if the server does not start.
    RuntimeError: if a client fails.
  """
  with tempfile.TemporaryDirectory(prefix='seedrl-bench-') as name:
    folder = pathlib.Path(name)
    paths = _make_data(folder)
    with server.ReverbServer(python, _tables()) as running:
      running.start()
      running.wait_ready()
      clients = _start_clients(python, running.address, folder)
      try:
        for data, path in paths.items():
          clients['ours'].run(path, 'fill', 1, _SIZE)
          for mode in MODES:
            for count in streams:
              row = _measure(clients, path, mode, count, windows)
              yield {'data': data, 'mode': mode, 'streams': count, **row}
      finally:
        for client in clients.values():
          client.close()


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
  played = environments.pong_frames(rng, _BLOCKS * _STEPS, _WIDTH)
  played = played.reshape(_BLOCKS, _STEPS, *played.shape[1:])
  frames = {
    'frames': played,
    'random': rng.integers(0, 256, (*leading, 84, 84, 1), np.uint8),
  }
  paths = {}
  for name in DATA:
    paths[name] = str(folder / f'{name}.npz')
    np.savez(paths[name], **columns, frame=frames[name])
  return paths


class _ClientProcess:
  """Runs `replay_clients`."""

  def __init__(self, command: Sequence[str], log: pathlib.Path):
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

  def run(self, path: str, mode: str, streams: int, count: int) -> Any:
    command = {'data': path, 'mode': mode, 'streams': streams, 'count': count}
    assert self._process.stdin and self._process.stdout
    self._process.stdin.write(json.dumps(command) + '\n')
    self._process.stdin.flush()
    if not (answer := self._process.stdout.readline()):
      said = self._log.read_text()[-2000:]
      raise RuntimeError(f'A client ended by itself: {said}')
    return json.loads(answer)

  def close(self) -> None:
    self._process.kill()
    self._process.communicate()


def _start_clients(
  python: str, address: str, folder: pathlib.Path
) -> dict[str, _ClientProcess]:
  programs = {
    'ours': [sys.executable, '-m', replay_clients.__name__],
    # By path, as the package is not installed there.
    'official': [python, replay_clients.__file__],
  }
  return {
    name: _ClientProcess([*program, name, address], folder / f'{name}.log')
    for name, program in programs.items()
  }


def _measure(
  clients: dict[str, _ClientProcess],
  path: str,
  mode: str,
  streams: int,
  windows: timing.Windows,
) -> dict[str, Any]:
  size = sum(array.nbytes for array in replay_clients.load(path)[0])
  counts: dict[str, int] = {}
  runs: dict[str, list[Any]] = {}
  for name, client in clients.items():
    client.run(path, mode, streams, 4 * streams)
    trial = client.run(path, mode, streams, _SIZE)
    share = _SIZE * windows.seconds / trial['seconds'] / streams
    counts[name] = streams * max(4, round(share))
    runs[name] = []
  for _ in range(windows.number):
    for name, client in clients.items():
      runs[name].append(client.run(path, mode, streams, counts[name]))
  figures = {name: _figures(runs[name], counts[name], size) for name in clients}
  pairs = zip(
    figures['ours']['rates'], figures['official']['rates'], strict=True
  )
  return {**figures, 'ratio': statistics.median(a / b for a, b in pairs)}


def _figures(
  runs: Sequence[dict[str, Any]], count: int, size: int
) -> dict[str, Any]:
  """Returns rates in uncompressed MB/s, and memory in bytes."""
  rates = [count * size / run['seconds'] / 1e6 for run in runs]
  costs = [run['cpu_seconds'] / (count * size / 1e9) for run in runs]
  summary = timing.summarize(rates, costs)
  return {
    'rates': rates,
    'median': summary.median,
    'minimum': summary.minimum,
    'maximum': summary.maximum,
    'cpu_seconds_per_gb': summary.cpu_seconds,
    'unrolls_per_second': summary.median * 1e6 / size * _WIDTH,
    'memory_peak': max(run['memory_peak'] for run in runs),
  }


def header() -> list[str]:
  """Returns the table's head."""
  return [
    f'An item is a block of {_WIDTH} unrolls of {_STEPS} steps, uncompressed '
    'MB/s: median (min–max);',
    'frames are of Pong by EnvPool; memory is the peak of the whole process.',
    'Ours has the settings of a run (memory, scheduling), the official one '
    'those of its users.',
    '',
    '| data | mode | streams | client | MB/s | unrolls/s | CPU s/GB | peak MB '
    '| ours / official |',
    '|---|---|---|---|---|---|---|---|---|',
  ]


def lines(row: dict[str, Any]) -> list[str]:
  """Returns a row of `measure` as table rows, one for each client."""
  out = []
  for name in replay_clients.CLIENTS:
    f = row[name]
    ratio = f'{row["ratio"]:.2f}' if name == 'ours' else ''
    out.append(
      f'| {row["data"]} | {row["mode"]} | {row["streams"]} | {name} '
      f'| {f["median"]:,.0f} ({f["minimum"]:,.0f}–{f["maximum"]:,.0f}) '
      f'| {f["unrolls_per_second"]:,.0f} | {f["cpu_seconds_per_gb"]:.2f} '
      f'| {f["memory_peak"] / 1e6:,.0f} | {ratio} |'
    )
  return out
