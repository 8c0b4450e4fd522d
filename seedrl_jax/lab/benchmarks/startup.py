"""Times the start of a run, from the command to its first update, by part.

The parts are what a run tells if asked (`runtime.startup`). Each start is a
process of its own, first with an empty folder of compiled programs, then with a
full one.
"""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from seedrl_jax.runtime import startup

_TRAIN = pathlib.Path(__file__).parents[2] / 'launch/train.py'
_READY = re.compile(r'Ready: (.*)\.$')
_LAST = 'first update'
# Of JAX, which would take the place of the run's own folder.
_CACHE = 'JAX_COMPILATION_CACHE_DIR'

# Seconds of each part, in their order.
Start = dict[str, float]


def measure(config: str, turns: int) -> Iterator[dict[str, str]]:
  """Starts runs, alternately cold and warm; yields a table row for each part.

  Args:
    config: value of the flag --config.
    turns: starts of each kind.

  Raises:
    ValueError: if a run ends before its first update; says its last words.
  """
  command = [sys.executable, str(_TRAIN), f'--config={config}']
  cold, warm = [], []
  for _ in range(turns):
    with tempfile.TemporaryDirectory() as cache:
      cold.append(_start(command, cache))
      warm.append(_start(command, cache))
  for part in cold[0]:
    yield {
      'ready': part,
      'cold, s': _text([start[part] for start in cold]),
      'warm, s': _text([start[part] for start in warm]),
    }


def _start(command: list[str], cache: str) -> Start:
  """Starts a run and stops it after its first update."""
  env = {name: x for name, x in os.environ.items() if name != _CACHE}
  with tempfile.TemporaryDirectory() as workdir:
    start = time.perf_counter()
    with subprocess.Popen(
      [*command, f'--workdir={workdir}'],
      env=env | {'SEEDRL_CACHE': cache, startup.VARIABLE: '1'},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    ) as run:
      try:
        return _parts(run, start)
      finally:
        run.terminate()


def _parts(run: subprocess.Popen[str], start: float) -> Start:
  """Reads until the first update; returns the seconds of parts and `total`."""
  assert run.stderr is not None
  parts: Start = {}
  before, line = start, ''
  for line in run.stderr:
    if match := _READY.match(line):
      now = time.perf_counter()
      parts[match[1]] = now - before
      before = now
      if match[1] == _LAST:
        return parts | {'total': now - start}
  raise ValueError(f'The run ended before its first update: {line.rstrip()}')


def _text(seconds: list[float]) -> str:
  """Returns 'median (min–max)'."""
  median = statistics.median(seconds)
  return f'{median:.2f} ({min(seconds):.2f}–{max(seconds):.2f})'
