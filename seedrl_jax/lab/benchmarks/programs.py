"""Times the programs of a run on the devices at hand, call by call."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from seedrl_jax.lab import programs as programs_lib
from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import environments
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import update
from seedrl_jax.run import setup as setup_lib

COLUMNS = (
  'program',
  'ms a call, median (min–max)',
  'calls',
  'compiled in, s',
)
_LEAST_CALLS = 5
# Of an act step: its first argument from the host, and the result for it.
_HOST, _ACTED = 3, 2

# Makes the arguments of a call.
_Prepare = Callable[[], tuple[Any, ...]]


def measure(
  config: ml_collections.ConfigDict, seconds: float
) -> Iterator[dict[str, str]]:
  """Times programs of a run call by call, on random numbers.

  Args:
    seconds: time for each program.

  Yields:
    a table row for each. Arguments and results stay on the device. In the rows
    'with copies', they come from the host and go there.
  """
  setup = setup_lib.plan(config)
  for program in programs_lib.list_programs(setup):
    yield from _time_program(setup, program, seconds)
  yield _time_publishing(setup, seconds)


def _time_program(
  setup: setup_lib.Setup, program: update.Program, seconds: float
) -> Iterator[dict[str, str]]:
  arguments = _arguments(setup, program)
  start = time.perf_counter()
  compiled = program.function.lower(*arguments).compile()
  compile_seconds = f'{time.perf_counter() - start:.1f}'
  name = program.name + (f' ({program.calls} x)' if program.calls > 1 else '')
  if program.name.startswith(programs_lib.ACT):

    def act(*arguments: Any) -> np.ndarray:
      return np.asarray(compiled(*arguments)[_ACTED])

    prepare = functools.partial(_prepare, arguments, program.donated)
    yield _row(f'{name}, with copies', act, prepare, seconds)
    arguments = jax.device_put(arguments, setup.topology.inference[0])
  prepare = functools.partial(_prepare, arguments, program.donated)
  yield _row(name, compiled, prepare, seconds, compile_seconds)


def _arguments(setup: setup_lib.Setup, program: update.Program) -> list[Any]:
  """Returns random arguments of a program, where a run has them.

  Those of an act step that come from environments are on the host.
  """
  rng = np.random.default_rng(0)
  values = list(environments.random_observation(rng, program.shapes, ()))
  if program.name.startswith(programs_lib.UPDATE):
    return [_place(setup.updater, value) for value in values]
  on_host = _HOST if program.name.startswith(programs_lib.ACT) else len(values)
  device = setup.topology.inference[0]
  return [*jax.device_put(values[:on_host], device), *values[on_host:]]


def _place(updater: update.Updater, value: Any) -> Any:
  # All but the progress have a row for each device.
  if getattr(value, 'ndim', 1) == 0:
    return value
  return updater.replicate(jax.tree.map(lambda x: x[0], value))


@jax.jit
def _copy(tree: Any) -> Any:
  # One program: else each shape of an array would have its own.
  return jax.tree.map(jnp.copy, tree)


def _prepare(arguments: list[Any], donated: int | None) -> tuple[Any, ...]:
  """Returns the arguments with a copy of the one that a call takes over."""
  copied = list(arguments)
  if donated is not None:
    copied[donated] = _copy(copied[donated])
  jax.block_until_ready(copied)
  return tuple(copied)


def _time_publishing(setup: setup_lib.Setup, seconds: float) -> dict[str, str]:
  publisher = learner_lib.ParameterPublisher(setup.topology.inference)
  shapes = setup.agent.params_shapes()
  rng = np.random.default_rng(0)
  params = jax.device_put(
    environments.random_observation(rng, shapes, ()),
    setup.updater.local_devices[0],
  )
  return _row(
    programs_lib.PUBLISH, publisher.publish, lambda: (0, params), seconds
  )


def _row(
  name: str,
  function: Callable[..., Any],
  prepare: _Prepare,
  seconds: float,
  compile_seconds: str = '-',
) -> dict[str, str]:
  """Times calls, and returns the table row."""
  times = [x * 1e3 for x in _durations(function, prepare, seconds)]
  text = tables.spread(times, 3)
  cells = (name, text, f'{len(times):,}', compile_seconds)
  return dict(zip(COLUMNS, cells, strict=True))


def _durations(
  function: Callable[..., Any], prepare: _Prepare, seconds: float
) -> list[float]:
  """Returns the seconds of each call after a first one."""
  jax.block_until_ready(function(*prepare()))
  times: list[float] = []
  total = 0.0
  while len(times) < _LEAST_CALLS or total < seconds:
    arguments = prepare()
    start = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    times.append(time.perf_counter() - start)
    total += times[-1]
  return times
