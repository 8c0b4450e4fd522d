"""Measures speed: `python launch/benchmark.py <what>`.

`ceilings` times each stage of a case alone; `system` times all stages at work,
also as a share of the ceilings; both take `--case` and `--backend`. `replay`
compares our Reverb client with the official one; `replay --case=r2d2` puts
R2D2's load on the store. `actors` compares remote with local environments, and
`modes` central with local inference.
"""

import importlib.metadata
import itertools
import json
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from absl import app, flags

from configs import benchmark
from seedrl_jax.runtime import process

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

# A row of figures; a header with all printed rows.
_Row = dict[str, Any]
_Printed = tuple[dict[str, str], list[_Row]]


def main(argv: Sequence[str]) -> None:
  """Measures and prints a table."""
  if len(argv) != 2 or argv[1] not in _MODES:
    sys.exit(f'benchmark: say what to measure: one of {", ".join(_MODES)}.')
  process.configure()
  try:
    header, rows = _MODES[argv[1]]()
  except ValueError as e:
    sys.exit(f'benchmark: {e}')
  if _JSON.value:
    text = json.dumps({'host': header, 'cases': rows}, indent=2)
    pathlib.Path(_JSON.value).write_text(text + '\n')


def _ceilings() -> _Printed:
  return _cases(None)


def _system() -> _Printed:
  from seedrl_jax.benchmarks import whole

  header, rows = _cases(_system_windows())
  print('\n'.join(whole.summary(rows)))
  return header, rows


def _cases(windows: Any) -> _Printed:
  """Times the cases' stages, and the whole system if `windows` is not None."""
  from seedrl_jax.benchmarks import environments, whole

  names = _CASE.value or benchmark.CASES
  configs = [benchmark.get_config(name) for name in names]
  if 'reverb' in _BACKEND.value:
    _name_server_python()
  header = _print_header()
  rows: list[_Row] = []
  runs = list(zip(names, configs, strict=True))
  for (name, config), backend in itertools.product(runs, _BACKEND.value):
    config.replay.backend = backend
    free = name == benchmark.FREE
    streams = environments.free_streams(config) if free else None
    case = whole.Case(name, config, streams)
    rows.append(whole.measure(case, _stage_windows(), windows))
    print('\n'.join(whole.lines(rows[-1])), flush=True)
  return header, rows


def _replay() -> _Printed:
  from seedrl_jax.benchmarks import replay, replay_sequences

  cases = _CASE.value or ['clients']
  for case in cases:
    if case not in _REPLAY_CASES:
      known = ', '.join(_REPLAY_CASES)
      raise ValueError(f'--case={case}: replay has {known}.')
  load = replay_sequences.Load()
  python = _server_python()
  windows = _stage_windows()
  header = _print_header()
  rows: list[_Row] = []
  for case in cases:
    if case == 'r2d2':
      head, lines = replay_sequences.header(load), replay_sequences.lines
      measured = replay_sequences.measure(python, load, windows)
    else:
      head, lines = replay.header(), replay.lines
      measured = replay.measure(python, windows, _STREAMS.value)
    rows += _print_rows(head, measured, lines)
  return header, rows


def _actors() -> _Printed:
  from seedrl_jax.benchmarks import actors

  windows = _stage_windows()
  calls = max(20, round(100 * windows.number * windows.seconds))
  cases = [
    actors.ActorsCase(name, benchmark.get_env(name), windows, calls)
    for name in _CASE.value or benchmark.ACTOR_CASES
  ]
  actors.check_envs(_ENVS_PER_ACTOR.value)
  header = _print_header()
  measured = itertools.chain.from_iterable(
    actors.measure(case, _ACTORS.value, _ENVS_PER_ACTOR.value) for case in cases
  )
  return header, _print_rows(
    actors.header(), measured, lambda row: [actors.line(row)]
  )


def _modes() -> _Printed:
  from seedrl_jax.benchmarks import actors, modes, whole

  actors.check_envs(_ENVS_PER_ACTOR.value)
  cases = [
    whole.Case(name, benchmark.get_config(name))
    for name in _CASE.value or _MODES_CASES
  ]
  _name_server_python()
  header = _print_header()
  counts = _ACTORS.value if flags.FLAGS['actors'].present else [2]
  measured = itertools.chain.from_iterable(
    modes.measure(case, count, size, _system_windows())
    for case, count, size in itertools.product(
      cases, counts, _ENVS_PER_ACTOR.value
    )
  )
  return header, _print_rows(
    modes.header(), measured, lambda row: [modes.line(row)]
  )


_MODES = {
  'ceilings': _ceilings,
  'system': _system,
  'replay': _replay,
  'actors': _actors,
  'modes': _modes,
}


def _stage_windows() -> Any:
  from seedrl_jax.benchmarks import timing

  return timing.Windows(_WINDOWS.value, _SECONDS.value)


def _system_windows() -> Any:
  from seedrl_jax.benchmarks import timing

  return timing.Windows(_WINDOWS.value, _SYSTEM_SECONDS.value, _WARM_UP.value)


def _server_python() -> str:
  """Returns the interpreter that has Reverb, made if missing."""
  from seedrl_jax.replay.reverb.server import environment

  try:
    return environment.ensure(_REVERB_PYTHON.value)
  except environment.EnvironmentUnavailable as e:
    sys.exit(f'benchmark: {e}')


def _name_server_python() -> None:
  from seedrl_jax.replay.reverb.server import environment

  os.environ[environment.VARIABLE] = _server_python()


def _print_rows(
  head: Iterable[str],
  measured: Iterable[_Row],
  lines: Callable[[_Row], list[str]],
) -> list[_Row]:
  print('\n'.join(['', *head]), flush=True)
  rows = []
  for row in measured:
    rows.append(row)
    print('\n'.join(lines(row)), flush=True)
  return rows


def _print_header() -> dict[str, str]:
  header = _describe()
  print('\n'.join(header.values()), flush=True)
  return header


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
  process.restart_with_huge_pages()
  app.run(main)
