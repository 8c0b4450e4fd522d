"""Measures speed: `python launch/benchmark.py ceilings|system|replay`.

`ceilings` times each stage of a case alone; `system` times the whole, all
stages at work, and gives it as a share of what the ceilings allow; both take
`--case`. `replay` times our Reverb client against the official one.
"""

import importlib.metadata
import json
import pathlib
import platform
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from configs import benchmark
from seedrl_jax.runtime import memory

_CASE = flags.DEFINE_multi_string(
  'case', [], 'Case to run; may be repeated. All of them unless given.'
)
_JSON = flags.DEFINE_string('json', None, 'File to write the figures to.')
_WINDOWS = flags.DEFINE_integer(
  'windows', 5, 'Windows of which the median is taken.', lower_bound=5
)
_SECONDS = flags.DEFINE_float(
  'seconds', 1.0, 'Length of a window of a stage.', lower_bound=0.05
)
_SYSTEM_SECONDS = flags.DEFINE_float(
  'system_seconds', 4.0, 'Length of a window of the system.', lower_bound=0.1
)
_WARM_UP = flags.DEFINE_float(
  'warm_up', 3.0, 'Seconds that the system runs before its first window.'
)
_REVERB_PYTHON = flags.DEFINE_string(
  'reverb_python', None, 'Interpreter that has Reverb, or can have it.'
)
_STREAMS = flags.DEFINE_multi_integer(
  'streams', [1, 2, 4], 'Streams of a client in `replay`.', lower_bound=1
)

_MODES = ('ceilings', 'system', 'replay')


def main(argv: Sequence[str]) -> None:
  """Measures and prints a table."""
  if len(argv) != 2 or argv[1] not in _MODES:
    sys.exit(f'benchmark: say what to measure: one of {", ".join(_MODES)}.')
  from seedrl_jax.runtime import process

  process.configure()
  header, rows = _replay() if argv[1] == 'replay' else _cases(argv[1])
  if _JSON.value:
    text = json.dumps({'host': header, 'cases': rows}, indent=2)
    pathlib.Path(_JSON.value).write_text(text + '\n')


def _replay() -> tuple[dict[str, str], list[dict[str, Any]]]:
  """Times both clients of Reverb; returns what was printed."""
  from seedrl_jax.benchmarks import replay
  from seedrl_jax.replay.reverb import environment

  try:
    python = environment.ensure(_REVERB_PYTHON.value)
  except environment.EnvironmentUnavailable as e:
    sys.exit(f'benchmark: {e}')
  header = _describe()
  print('\n'.join([*header.values(), '', *replay.header()]), flush=True)
  rows = []
  for row in replay.measure(
    python, _WINDOWS.value, _SECONDS.value, _STREAMS.value
  ):
    rows.append(row)
    print('\n'.join(replay.lines(row)), flush=True)
  return header, rows


def _cases(mode: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
  """Times the cases of the whole system; returns what was printed."""
  from seedrl_jax.benchmarks import free_stream, table

  names = _CASE.value or benchmark.CASES
  try:
    configs = [benchmark.get_config(name) for name in names]
  except ValueError as e:
    sys.exit(f'benchmark: --case: {e}')
  header = _describe()
  for line in header.values():
    print(line)
  rows: list[dict[str, Any]] = []
  for name, config in zip(names, configs, strict=True):
    measured = table.measure(
      name,
      config,
      free_stream.make_stream if name == benchmark.FREE else None,
      mode == 'system',
      _WINDOWS.value,
      _SECONDS.value,
      _SYSTEM_SECONDS.value,
      _WARM_UP.value,
    )
    rows.append(measured)
    print('\n'.join(table.lines(measured)), flush=True)
  if mode == 'system':
    print('\n'.join(table.summary(rows)))
  return header, rows


def _describe() -> dict[str, str]:
  """Returns command, machine and versions, one line each."""
  import jax

  from seedrl_jax.benchmarks import timing

  devices = jax.local_devices()
  versions = ', '.join(
    f'{name} {importlib.metadata.version(name)}'
    for name in ('jax', 'flax', 'envpool', 'numpy')
  )
  return {
    'command': 'command: ' + ' '.join(sys.argv),
    'machine': (
      f'machine: {_processor()}, {timing.cores()} cores, '
      f'{len(devices)} x {devices[0].device_kind}'
    ),
    'versions': f'versions: Python {platform.python_version()}, {versions}',
  }


def _processor() -> str:
  try:
    text = pathlib.Path('/proc/cpuinfo').read_text()
  except OSError:
    return platform.processor()
  for line in text.splitlines():
    if line.startswith('model name'):
      return line.split(':', 1)[1].strip()
  return platform.machine()


if __name__ == '__main__':
  memory.restart_with_huge_pages()
  app.run(main)
