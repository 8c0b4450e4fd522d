"""Measures speed: `seedrl benchmark <what>`.

`system` times each stage of a case alone, then its environments alone, with
inference, and with training, also as a share of what the stages allow; it takes
`--case`, `--envs` and `--backend`. `peers` compares with other
libraries. `startup` times the start of a run. `architectures` runs DQN, GORILA,
A3C, IMPALA, SEED and others on the same tasks. `accelerator` measures all that
matters on a GPU or TPU within `--minutes`, and compares it with targets.
"""

import importlib.metadata
import pathlib
import platform
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ml_collections
from absl import flags

from seedrl_jax.configs import benchmark
from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import timing
from seedrl_jax.launch import program
from seedrl_jax.runtime import process

_CASE = flags.DEFINE_multi_string(
  'case',
  [],
  'Case to run; may be repeated. All of them unless given. `startup` takes the '
  'name of any configuration; its default is vtrace_cartpole.',
)
_BACKEND = flags.DEFINE_multi_enum(
  'backend',
  [],
  ['embedded', 'reverb', 'device'],
  "Store of a case, instead of its own ('device' for environments in JAX, else "
  "'embedded'); repeated, a case runs on one after the other.",
)
_ENVS = flags.DEFINE_multi_integer(
  'envs',
  [],
  'Environments of a case, instead of its own number; repeated, a case runs '
  'with one number after the other.',
  lower_bound=1,
)
_WINDOWS = flags.DEFINE_integer(
  'windows',
  5,
  'Windows of which the median is taken; turns of `startup`.',
  lower_bound=5,
)
_SECONDS = flags.DEFINE_float(
  'seconds',
  1.0,
  'Length of a window of a stage.',
  lower_bound=0.05,
)
_SYSTEM_SECONDS = flags.DEFINE_float(
  'system_seconds',
  4.0,
  'Length of a window of the system or a peer.',
  lower_bound=0.1,
)
_WARM_UP = flags.DEFINE_float(
  'warm_up', 3.0, 'Seconds that the system runs before its first window.'
)
_PEER = flags.DEFINE_multi_string(
  'peer', [], 'Library for `peers`; may be repeated. All of them unless given.'
)
_TURNS = flags.DEFINE_integer(
  'turns', 3, 'Runs of each side in `peers`.', lower_bound=1
)
_LIMIT = flags.DEFINE_float(
  'limit',
  120.0,
  'Seconds in which a run of `peers` is to learn a task.',
  lower_bound=1.0,
)

_MINUTES = flags.DEFINE_float(
  'minutes',
  8.0,
  'Time for `accelerator`; what does not fit in is named.',
  lower_bound=0.0,
)
_SMALL = flags.DEFINE_bool(
  'small', False, 'All of `accelerator` at small sizes, to try it on a CPU.'
)


def main(argv: Sequence[str]) -> None:
  """Measures and prints tables."""
  if len(argv) != 2 or argv[1] not in _WHAT:
    sys.exit(f'benchmark: say what to measure: one of {", ".join(_WHAT)}.')
  process.configure()
  try:
    _WHAT[argv[1]]()
  except ValueError as e:
    sys.exit(f'benchmark: {e}')


def _system() -> None:
  from seedrl_jax.lab.benchmarks import whole

  numbers: Sequence[int | None] = _ENVS.value or [None]
  backends: Sequence[str | None] = _BACKEND.value or [None]
  cases = [
    (_case(name, benchmark.get_config(name, number)), backend)
    for name in _CASE.value or benchmark.CASES
    for number in numbers
    for backend in backends
  ]
  _describe()
  summary = []
  for case, backend in cases:
    if backend is not None:
      case.config.replay.backend = backend
    summary.append(whole.measure(case, _stage_windows(), _system_windows()))
  tables.show(summary)


def _case(name: str, config: ml_collections.ConfigDict) -> Any:
  from seedrl_jax.lab.benchmarks import environments, whole

  is_free = name.startswith(benchmark.FREE)
  streams = environments.free_streams(config) if is_free else None
  return whole.Case(name, config, streams)


def _stage_windows() -> timing.Windows:
  return timing.Windows(_WINDOWS.value, _SECONDS.value)


def _system_windows() -> timing.Windows:
  return timing.Windows(_WINDOWS.value, _SYSTEM_SECONDS.value, _WARM_UP.value)


def _known_cases(what: str, known: Sequence[str]) -> Sequence[str]:
  """Returns the cases to run: those of `--case`, or all."""
  for case in _CASE.value:
    if case not in known:
      raise ValueError(f'--case={case}: {what} has {", ".join(known)}.')
  return _CASE.value or known


def _peers() -> None:
  from seedrl_jax.lab.benchmarks.peers import comparison, library

  names = _known_cases('peers', benchmark.PEER_CASES)
  rows: list[tables.Row] = []
  for name in names:
    config = benchmark.get_config(name)
    substitute = benchmark.PEER_SUBSTITUTES.get(name, name)
    peers = library.select(_PEER.value, config.agent)
    task = comparison.Task(
      name,
      config,
      benchmark.get_config(substitute),
      benchmark.TARGETS.get(name),
      _LIMIT.value,
      _system_windows(),
      _TURNS.value,
    )
    rows += comparison.measure(task, peers)
  # Last: JAX here would keep an accelerator's memory from the runs.
  _describe()
  tables.show(rows)


def _startup() -> None:
  from seedrl_jax.lab.benchmarks import startup

  _describe()
  for name in _CASE.value or ['vtrace_cartpole']:
    tables.show(startup.measure(name, _WINDOWS.value))


def _architectures() -> None:
  from seedrl_jax.lab.benchmarks import architectures

  names = _known_cases('architectures', tuple(architectures.ARCHITECTURES))
  _describe()
  tables.show(
    architectures.measure(
      name,
      architectures.TASKS,
      _SYSTEM_SECONDS.value,
      _LIMIT.value,
      len(process.PROCESSORS),
    )
    for name in names
  )


def _accelerator() -> None:
  from seedrl_jax.lab.benchmarks import accelerator

  small = _SMALL.value
  cases = [_case(*item) for item in benchmark.get_accelerator(small).items()]
  with accelerator.Session(60 * _MINUTES.value) as session:
    _describe()
    accelerator.measure(
      session,
      cases,
      timing.Windows(3, 0.05 if small else 0.4),
      timing.Windows(3, 0.2 if small else 2.0, 0.0 if small else 2.0),
    )


_WHAT: dict[str, Callable[[], None]] = {
  'system': _system,
  'peers': _peers,
  'startup': _startup,
  'architectures': _architectures,
  'accelerator': _accelerator,
}


def _describe() -> None:
  """Prints command, machine and versions, one line each."""
  import jax

  devices = jax.local_devices()
  versions = ', '.join(
    f'{name} {importlib.metadata.version(name)}'
    for name in ('jax', 'flax', 'envpool', 'numpy')
  )
  print('command:', *sys.argv)
  print(
    f'machine: {_processor()}, {len(process.PROCESSORS)} cores, '
    f'{len(devices)} x {devices[0].device_kind}'
  )
  print(f'versions: Python {platform.python_version()}, {versions}', flush=True)


def _processor() -> str:
  text = pathlib.Path('/proc/cpuinfo').read_text()
  # Not there on ARM.
  model = re.search(r'^model name\s*: (.*)$', text, re.MULTILINE)
  return model[1] if model else platform.machine()


if __name__ == '__main__':
  program.run(main, huge_pages=True)
