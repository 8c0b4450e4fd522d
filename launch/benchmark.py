"""Measures speed: `python launch/benchmark.py <what>`.

`ceilings` times each stage of a case alone; `system` times the whole, all
stages at work, and gives it as a share of what the ceilings allow; both take
`--case` and `--backend`. `replay` times our Reverb client against the official
one; `replay --case=r2d2` puts R2D2's load on the store. `actors` times remote
environments against those of this process, and `modes` actors that the learner
acts for against those that act themselves.
"""

import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import sys
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from configs import benchmark
from seedrl_jax.runtime import memory

_CASE = flags.DEFINE_multi_string(
  'case',
  [],
  'Case to run; may be repeated. All of them unless given, and for `replay` '
  'clients, of clients and r2d2.',
)
_BACKEND = flags.DEFINE_multi_enum(
  'backend',
  ['embedded'],
  ['embedded', 'reverb'],
  'Store of a case; repeated, a case runs on one after the other.',
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

_SEQUENCES = flags.DEFINE_integer(
  'sequences', 2000, 'Sequences in the table of `replay --case=r2d2`.'
)
_STEPS = flags.DEFINE_integer('sequence_steps', 140, 'Steps of a sequence.')
_OVERLAP = flags.DEFINE_integer(
  'overlap', 40, 'Steps that consecutive sequences share.'
)
_FRAME_SIZE = flags.DEFINE_integer(
  'frame_size', 84, 'Height and width of a frame of a sequence.'
)

_ACTORS = flags.DEFINE_multi_integer(
  'actors',
  [1, 2, 4, 8, 16, 32],
  "Actors' processes in `actors`; in `modes` two unless given.",
  lower_bound=1,
)
_ENVS_PER_ACTOR = flags.DEFINE_multi_integer(
  'envs_per_actor', [16], 'Environments of each of these.', lower_bound=2
)

_MODES_CASES = ('cartpole128', 'pong_tiny')
_REPLAY_CASES = ('clients', 'r2d2')
_MODES = ('ceilings', 'system', 'replay', 'actors', 'modes')


def main(argv: Sequence[str]) -> None:
  """Measures and prints a table."""
  if len(argv) != 2 or argv[1] not in _MODES:
    sys.exit(f'benchmark: say what to measure: one of {", ".join(_MODES)}.')
  from seedrl_jax.runtime import process

  process.configure()
  modes = {'replay': _replay, 'actors': _actors, 'modes': _modes}
  header, rows = modes.get(argv[1], lambda: _cases(argv[1]))()
  if _JSON.value:
    text = json.dumps({'host': header, 'cases': rows}, indent=2)
    pathlib.Path(_JSON.value).write_text(text + '\n')


def _replay() -> tuple[dict[str, str], list[dict[str, Any]]]:
  """Times the cases of Reverb's client and store; returns what was printed."""
  from seedrl_jax.benchmarks import replay, replay_sequences

  cases = _CASE.value or ['clients']
  for case in cases:
    if case not in _REPLAY_CASES:
      known = ', '.join(_REPLAY_CASES)
      sys.exit(f'benchmark: --case={case}: replay has {known}.')
  load = _load()
  python = _server_python()
  header = _describe()
  print('\n'.join(header.values()), flush=True)
  rows: list[dict[str, Any]] = []
  length = (_WINDOWS.value, _SECONDS.value)
  for case in cases:
    if case == 'r2d2':
      head, lines = replay_sequences.header(load), replay_sequences.lines
      measured = replay_sequences.measure(python, load, *length)
    else:
      head, lines = replay.header(), replay.lines
      measured = replay.measure(python, *length, _STREAMS.value)
    print('\n'.join(['', *head]), flush=True)
    for row in measured:
      rows.append(row)
      print('\n'.join(lines(row)), flush=True)
  return header, rows


def _actors() -> tuple[dict[str, str], list[dict[str, Any]]]:
  """Times remote environments; returns what was printed."""
  from seedrl_jax.benchmarks import actors

  header = _describe()
  print('\n'.join([*header.values(), '', *actors.header()]), flush=True)
  rows: list[dict[str, Any]] = []
  total = _WINDOWS.value * _SECONDS.value
  length = actors.Length(
    _WINDOWS.value, _SECONDS.value, calls=max(20, round(100 * total))
  )
  try:
    for case in _CASE.value or benchmark.ACTOR_CASES:
      for row in actors.measure(
        case,
        benchmark.get_env(case),
        _ACTORS.value,
        _ENVS_PER_ACTOR.value,
        length,
      ):
        rows.append(row)
        print(actors.line(row), flush=True)
  except ValueError as e:
    sys.exit(f'benchmark: {e}')
  return header, rows


def _modes() -> tuple[dict[str, str], list[dict[str, Any]]]:
  """Compares who acts; returns what was printed."""
  from seedrl_jax.benchmarks import actors, modes
  from seedrl_jax.replay.reverb.server import environment

  try:
    actors.check_envs(_ENVS_PER_ACTOR.value)
    configs = {
      case: benchmark.get_config(case) for case in _CASE.value or _MODES_CASES
    }
  except ValueError as e:
    sys.exit(f'benchmark: {e}')
  os.environ[environment.VARIABLE] = _server_python()
  header = _describe()
  print('\n'.join([*header.values(), '', *modes.header()]), flush=True)
  rows: list[dict[str, Any]] = []
  counts = _ACTORS.value if flags.FLAGS['actors'].present else [2]
  sizes = itertools.product(configs, counts, _ENVS_PER_ACTOR.value)
  for case, count, size in sizes:
    for row in modes.measure(
      case,
      configs[case],
      count,
      size,
      _WINDOWS.value,
      _SYSTEM_SECONDS.value,
      _WARM_UP.value,
    ):
      rows.append(row)
      print(modes.line(row), flush=True)
  return header, rows


def _server_python() -> str:
  """Returns the interpreter that has Reverb, made where missing."""
  from seedrl_jax.replay.reverb.server import environment

  try:
    return environment.ensure(_REVERB_PYTHON.value)
  except environment.EnvironmentUnavailable as e:
    sys.exit(f'benchmark: {e}')


def _load() -> Any:
  """Returns what `replay --case=r2d2` writes and draws."""
  from seedrl_jax.benchmarks import sequences

  try:
    return sequences.Load(
      sequences=_SEQUENCES.value,
      steps=_STEPS.value,
      overlap=_OVERLAP.value,
      frame_size=_FRAME_SIZE.value,
    )
  except ValueError as e:
    sys.exit(f'benchmark: {e}')


def _cases(mode: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
  """Times the cases of the whole system; returns what was printed."""
  from seedrl_jax.benchmarks import free_stream, table
  from seedrl_jax.replay.reverb.server import environment

  names = _CASE.value or benchmark.CASES
  try:
    configs = [benchmark.get_config(name) for name in names]
  except ValueError as e:
    sys.exit(f'benchmark: --case: {e}')
  if 'reverb' in _BACKEND.value:
    # Where the store looks for it.
    os.environ[environment.VARIABLE] = _server_python()
  header = _describe()
  for line in header.values():
    print(line)
  rows: list[dict[str, Any]] = []
  runs = list(zip(names, configs, strict=True))
  for (name, config), backend in itertools.product(runs, _BACKEND.value):
    config.replay.backend = backend
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
