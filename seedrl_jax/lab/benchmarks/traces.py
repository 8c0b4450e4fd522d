"""Reads traces of `jax.profiler`: what kept a device busy, and what did not."""

import collections
import gzip
import json
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from seedrl_jax.lab.benchmarks import whole

_HOST, _DEVICE = '/host:CPU', '/device:'
# Threads of a GPU's streams, and of a TPU's operations.
_STREAM, _OPERATIONS = 'Stream', 'XLA Ops'


class Operation(NamedTuple):
  """An operation on a device; times are in microseconds.

  Attributes:
    program: that it is part of; '' for copies from and to the host.
  """

  program: str
  name: str
  start: float
  end: float

  def __str__(self) -> str:
    return f'{self.program} {self.name}'.strip()


class Gap(NamedTuple):
  """Microseconds between operations in which a device was idle."""

  idle: float
  before: Operation
  after: Operation


def profile(
  case: whole.Case, warm_up: float, seconds: float
) -> dict[str, list[Operation]]:
  """Returns the operations of a run that trains; see `operations`.

  Args:
    warm_up: seconds from the first updates to the profile.
    seconds: of the profile.

  Raises:
    system.RunFailed: if the run failed.
    ValueError: if the profiler saw no operation.
  """
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  # On the CPU, operations are among the host's events.
  options.host_tracer_level = 2 if jax.default_backend() == 'cpu' else 1
  with tempfile.TemporaryDirectory() as folder:
    with whole.running(case.config, case.streams) as (run, training):
      whole.Counts(run, training).warm_up(warm_up)
      with jax.profiler.trace(folder, profiler_options=options):
        whole.wait(training, seconds)
    (path,) = pathlib.Path(folder).rglob('*.trace.json.gz')
    with gzip.open(path) as file:
      by_device = operations(json.load(file))
  if not by_device:
    raise ValueError('The profiler saw no operation of a device.')
  return by_device


def operations(trace: Mapping[str, Any]) -> dict[str, list[Operation]]:
  """Returns each device's operations by their beginning.

  The CPU is one device, whose operations are those of all threads.

  Args:
    trace: in Chrome's format.
  """
  events = trace['traceEvents']
  names: dict[tuple[str, int, int], str] = {
    (event['name'], event['pid'], event.get('tid', 0)): event['args']['name']
    for event in events
    if event.get('name') in ('process_name', 'thread_name')
  }
  # They also have threads that sum up the streams.
  gpus = {key[1] for key, name in names.items() if name.startswith(_STREAM)}
  by_device: dict[str, list[Operation]] = collections.defaultdict(list)
  for event in events:
    if event.get('ph') != 'X':
      continue
    pid, args = event['pid'], event.get('args', {})
    process = names.get(('process_name', pid, 0), '')
    thread = names.get(('thread_name', pid, event['tid']), '')
    if process == _HOST:
      wanted = 'hlo_op' in args and not event['name'].startswith('end: ')
    elif pid in gpus:
      wanted = thread.startswith(_STREAM)
    else:
      wanted = process.startswith(_DEVICE) and thread == _OPERATIONS
    if wanted:
      program = args.get('hlo_module', '').partition('(')[0]
      name = args.get('hlo_op', event['name'])
      end = event['ts'] + event['dur']
      by_device[process].append(Operation(program, name, event['ts'], end))
  return {k: sorted(v, key=lambda x: x.start) for k, v in by_device.items()}


def gaps(timeline: Sequence[Operation]) -> list[Gap]:
  """Returns the gaps between a device's operations."""
  idle, last = [], timeline[0]
  for operation in timeline:
    if operation.start > last.end:
      idle.append(Gap(operation.start - last.end, last, operation))
    last = max(last, operation, key=lambda x: x.end)
  return idle


def busy_text(timeline: Sequence[Operation]) -> str:
  """Returns how busy a device is."""
  span = _span(timeline)
  busy = 1 - sum(gap.idle for gap in gaps(timeline)) / span
  return f'busy {busy:.1%} of {span / 1e3:,.1f} ms'


def _span(timeline: Sequence[Operation]) -> float:
  return max(x.end for x in timeline) - timeline[0].start


def rows(
  timeline: Sequence[Operation], number: int
) -> Iterator[dict[str, str]]:
  """Yields table rows of the programs, operations and gaps that took most.

  Shares are of the time from the first operation to the end of the last.
  """
  kinds = {
    'program': [(x.program or 'copies', x.end - x.start) for x in timeline],
    'operation': [(str(x), x.end - x.start) for x in timeline],
    'idle': [(f'{x.before} → {x.after}', x.idle) for x in gaps(timeline)],
  }
  for kind, named in kinds.items():
    groups = collections.defaultdict(list)
    for name, time in named:
      groups[name].append(time)
    largest = sorted(groups.items(), key=lambda x: sum(x[1]), reverse=True)
    for name, times in largest[:number]:
      yield {
        'kind': kind,
        'name': name,
        'of the time': f'{sum(times) / _span(timeline):.1%}',
        'times': f'{len(times):,}',
        'longest, ms': f'{max(times) / 1e3:,.3f}',
      }
