"""Times the start of a run, from the command to its first update, by part.

`progress.ready` makes a run print its parts. Each start is a process of its
own, first with an empty folder of compiled programs, then with a full one.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator

from seedrl_jax.lab import launching, tables
from seedrl_jax.runtime import progress

_READY = re.compile(r'Ready: (.*)\.$')
_LAST = 'first update'
# Of JAX, which would take the place of the run's own folder.
_CACHE = 'JAX_COMPILATION_CACHE_DIR'

# Seconds of each part, in their order.
Start = dict[str, float]


def measure(config: str, turns: int) -> Iterator[tables.Row]:
  """Starts runs, alternately cold and warm; yields a table row for each part.

  Args:
    config: value of the flag --config.
    turns: starts of each kind.

  Raises:
    ValueError: if a run ends before its first update; has its last line.
  """
  cold, warm = [], []
  for _ in range(turns):
    with tempfile.TemporaryDirectory() as cache:
      cold.append(_start(config, cache))
      warm.append(_start(config, cache))
  for part in cold[0]:
    yield {
      'ready': part,
      'cold, s': tables.spread([start[part] for start in cold], 2),
      'warm, s': tables.spread([start[part] for start in warm], 2),
    }


def _start(config: str, cache: str) -> Start:
  """Starts a run and stops it after its first update."""
  env = {name: x for name, x in os.environ.items() if name != _CACHE}
  with tempfile.TemporaryDirectory() as workdir:
    start = time.perf_counter()
    with launching.running(
      'train',
      [f'--config={config}', f'--workdir={workdir}'],
      env=env | {'SEEDRL_CACHE': cache, progress.START_VARIABLE: '1'},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
    ) as run:
      return _parts(run, start)


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
