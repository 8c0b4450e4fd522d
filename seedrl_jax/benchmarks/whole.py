"""Times the whole system and compares it with its stages alone."""

import contextlib
import io
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax.benchmarks import ceilings, timing
from seedrl_jax.learner import topology as topology_lib
from seedrl_jax.run import build, system
from seedrl_jax.runtime import progress

# Before the first window, and in each.
_FIRST_UPDATES, _LEAST_UPDATES = 3, 4
_POLL = 0.01


class Case(NamedTuple):
  """What to measure.

  Attributes:
    streams: makes the environments; None: the configured ones.
  """

  name: str
  config: ml_collections.ConfigDict
  streams: build.MakeStream | None = None


class Whole(NamedTuple):
  """Timing of a run.

  Attributes:
    steps: environment steps per second.
    trained_share: steps trained on / steps taken, over the windows.
    waits: report on which stage waited for which.
  """

  steps: timing.Timing
  trained_share: float
  waits: str
  topology: topology_lib.Topology


def measure(
  case: Case, stages: timing.Windows, whole: timing.Windows | None
) -> dict[str, Any]:
  """Returns a case's figures, ready for JSON.

  Args:
    stages: windows of each stage.
    whole: windows of the whole; None: stages only.

  Raises:
    system.RunFailed: if the run failed.
  """
  # Time the stages before and after the whole, so that drift of the machine's
  # speed does not change the share.
  before = ceilings.measure(case.config, case.streams, stages)
  row = {
    'case': case.name,
    'backend': case.config.replay.backend,
    'ceilings': before.row(),
  }
  if whole is None:
    return row
  ran = _measure_whole(case, whole)
  after = ceilings.measure(case.config, case.streams, stages)
  ideal = (before.ideal(ran.topology) + after.ideal(ran.topology)) / 2
  env = (before.env.median + after.env.median) / 2
  row['system'] = {
    **ran.steps._asdict(),
    'trained_share': ran.trained_share,
    'ideal': ideal,
    'share_of_ideal': ran.steps.median / ideal,
    'share_of_env': ran.steps.median / env,
    'waits': ran.waits,
  }
  return row


@contextlib.contextmanager
def running(
  config: ml_collections.ConfigDict, streams: build.MakeStream | None = None
) -> Iterator[tuple[system.System, threading.Thread]]:
  """Yields a run that trains, and its thread; stops it at the end.

  Raises:
    system.RunFailed: at the end, if the run failed.
  """
  with tempfile.TemporaryDirectory() as workdir:
    run = system.System(
      config,
      workdir,
      make_streams=streams,
      line=progress.ProgressLine(io.StringIO()),
    )
    errors: list[BaseException] = []
    thread = threading.Thread(target=_train, args=(run, errors), name='run')
    thread.start()
    try:
      yield run, thread
    finally:
      run.stop()
      thread.join()
      if errors:
        raise errors[0]


def wait(thread: threading.Thread, seconds: float) -> None:
  """Waits for so long; raises RuntimeError at once if the run ends."""
  thread.join(seconds)
  if not thread.is_alive():
    raise RuntimeError('The run ended before it was measured.')


def _train(run: system.System, errors: list[BaseException]) -> None:
  try:
    run.train()
  except BaseException as e:  # Raised again by `running`.
    errors.append(e)


def _measure_whole(case: Case, windows: timing.Windows) -> Whole:
  with running(case.config, case.streams) as (run, thread):
    return _watch(run, thread, case.config, windows)


def _watch(
  run: system.System,
  thread: threading.Thread,
  config: ml_collections.ConfigDict,
  windows: timing.Windows,
) -> Whole:
  learner = run.parts.learner.counters
  per_update = config.batch_size * config.unroll_length

  def steps() -> int:
    return sum(worker.counters.env_steps for worker in run.parts.workers)

  def wait_for_update(number: int) -> int:
    while thread.is_alive() and learner.updates < number:
      time.sleep(_POLL)
    return learner.updates

  wait_for_update(_FIRST_UPDATES)
  wait(thread, windows.warm_up)
  rates, costs = [], []
  # Windows begin and end at updates: if these are slow, environments step in
  # bursts between them.
  updates = latest = wait_for_update(learner.updates + 1)
  first = steps()
  for _ in range(windows.number):
    before, cpu, start = steps(), time.process_time(), time.perf_counter()
    wait(thread, windows.seconds)
    latest = wait_for_update(max(latest + _LEAST_UPDATES, learner.updates + 1))
    elapsed = time.perf_counter() - start
    taken = max(1, steps() - before)
    rates.append(taken / elapsed)
    costs.append((time.process_time() - cpu) / taken)
  return Whole(
    timing.summarize(rates, costs),
    (latest - updates) * per_update / max(1, steps() - first),
    run.waits.report() if run.waits else '',
    run.parts.topology,
  )


def lines(row: dict[str, Any]) -> list[str]:
  """Returns a row of `measure` as lines of text."""
  stages = row['ceilings']
  out = [
    f'\n{row["case"]} ({row["backend"]} store): steps/s alone, median '
    '(min–max), host µs per step',
    _line('environments', stages['env']),
  ]
  for size, figures in stages['inference'].items():
    mark = ' *' if size == stages['batch_size'] else ''
    out.append(_line(f'inference, batch {size}{mark}', figures))
  out.append(_line('update', stages['update']))
  out.append(_line('store', stages['store']))
  if 'system' in row:
    ran = row['system']
    out.append(_line('whole system', ran))
    out.append(
      f'  = {ran["share_of_ideal"]:.2f} of the ideal {ran["ideal"]:,.0f}, '
      f'{ran["share_of_env"]:.2f} of the environments alone; trained on '
      f'{ran["trained_share"]:.2f} of the steps\n  {ran["waits"]}'
    )
  return out


def _line(name: str, figures: dict[str, Any]) -> str:
  fields = (figures[field] for field in timing.Timing._fields)
  text = timing.Timing(*fields).text()
  return f'  {name:<24} {text:>40} {figures["cpu_seconds"] * 1e6:>10.3f}'


def summary(rows: list[dict[str, Any]]) -> list[str]:
  """Returns a table that compares each case with its ideal."""
  out = [
    '\n| case | store | steps/s | spread | ideal | share | share of envs |',
    '|---|---|---|---|---|---|---|',
  ]
  for row in rows:
    ran = row['system']
    out.append(
      f'| {row["case"]} | {row["backend"]} | {ran["median"]:,.0f} | '
      f'{ran["minimum"]:,.0f}–{ran["maximum"]:,.0f} | {ran["ideal"]:,.0f} | '
      f'{ran["share_of_ideal"]:.2f} | {ran["share_of_env"]:.2f} |'
    )
  return out
