"""Times the cost of sharing an update among devices and hosts.

Simulated devices share this machine's cores, so an update takes longer the more
of them there are, though the work of each is the same. Therefore a cycle of the
learner's thread (coordinate, shard, update, publish) is timed alternately with
the same update of the same devices on a batch that is already on them, in which
no device waits for another. The additional time of the cycle is the overhead.
"""

import contextlib
import multiprocessing
import os
import socket
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple
from unittest import mock

import jax
import ml_collections

from seedrl_jax.hosts import coordinator as coordinator_lib
from seedrl_jax.hosts import joining
from seedrl_jax.lab import tables
from seedrl_jax.lab.benchmarks import environments
from seedrl_jax.learner import update as update_lib
from seedrl_jax.replay import table_configs
from seedrl_jax.run import opening, reporting
from seedrl_jax.run import parts as parts_lib
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import process, report

# Training devices per inference device, as by default with four devices.
_TRAINING = 3
_JOIN_SECONDS = 300.0


class Split(NamedTuple):
  """Training devices, evenly over processes that are hosts to each other."""

  devices: int
  processes: int

  @property
  def training(self) -> int:
    """Training devices of each process."""
    return self.devices // self.processes

  @property
  def inference(self) -> int:
    """Inference devices of each process."""
    return -(-self.training // _TRAINING)


class Turn(NamedTuple):
  """Seconds of an update.

  Attributes:
    alone: the devices' own work.
    cycle: of the learner's thread, with all that follows.
  """

  alone: float
  cycle: float

  @property
  def overhead(self) -> float:
    """The share of the cycle that is not the devices' own work."""
    return 1.0 - self.alone / self.cycle


def measure(
  config: ml_collections.ConfigDict, split: Split, turns: int
) -> tables.Row:
  """Times `turns` updates; returns a table row.

  `config.batch_size` and `config.env.num_envs` are for each device.
  """
  config = config.copy_and_resolve_references()
  config.batch_size *= split.devices
  config.env.num_envs *= split.inference
  config.topology.inference_to_training = f'{split.inference}:{split.training}'
  address = f'127.0.0.1:{_free_port()}'
  spawn = multiprocessing.get_context('spawn')
  with futures.ProcessPoolExecutor(
    split.processes, spawn, _simulate, (split.inference + split.training,)
  ) as executor:
    running = [
      executor.submit(_run, config, address, split.processes, i, turns)
      for i in range(split.processes)
    ]
    results = [of_process.result() for of_process in running]
  return _row(split, [slowest(turn) for turn in zip(*results, strict=True)])


def slowest(turns: Sequence[Turn]) -> Turn:
  """Returns the longest time of any process, of each part."""
  return Turn(*map(max, zip(*turns, strict=True)))


def _row(split: Split, turns: Sequence[Turn]) -> tables.Row:
  alone, cycle = map(statistics.median, zip(*turns, strict=True))
  low, overhead, high = statistics.quantiles(
    [turn.overhead for turn in turns], n=4, method='inclusive'
  )
  return {
    'devices': f'{split.devices}',
    'processes': f'{split.processes}',
    'cycle, ms': f'{1e3 * cycle:.1f}',
    'alone, ms': f'{1e3 * alone:.1f}',
    'overhead (quartiles)': f'{overhead:.1%} ({low:.1%}–{high:.1%})',
  }


def _free_port() -> int:
  with socket.create_server(('127.0.0.1', 0)) as server:
    return server.getsockname()[1]


def _simulate(devices: int) -> None:
  """Gives this process that many CPU devices; before JAX sees a device."""
  flags = os.environ.get('XLA_FLAGS', '')
  os.environ['XLA_FLAGS'] = (
    f'{flags} --xla_force_host_platform_device_count={devices}'
  )
  os.environ['JAX_PLATFORMS'] = 'cpu'
  process.configure()


def _run(
  config: ml_collections.ConfigDict,
  address: str,
  count: int,
  index: int,
  turns: int,
) -> list[Turn]:
  """Times a process's part of the updates."""
  coordinator = joining.join(address, count, index, _JOIN_SECONDS)
  try:
    coordinator.check_start(config)
    timed = list(_time(config, coordinator, turns))
  except BaseException as e:
    coordinator.fail(repr(e), traceback.format_exc())
    raise
  coordinator.leave()
  return timed


def _time(
  config: ml_collections.ConfigDict,
  coordinator: coordinator_lib.Coordinator,
  turns: int,
) -> Iterator[Turn]:
  plan = plan_lib.make_plan(config, coordinator.placement())
  # Hosts have seeds of their own.
  _, state = coordinator.share({}, plan_lib.initial_state(plan))
  streams = environments.free_streams(config)
  parts = opening.open_parts(plan, state, streams=streams)
  figures = reporting.RunCounters(config, parts, report.RunRecord())
  with contextlib.closing(parts):
    alone = _make_alone(parts)

    def compile_both() -> None:
      parts.learner.compile(parts.blank_batch)
      alone()

    coordinator.compile(parts.updater.connect, compile_both, is_needed=True)
    with coordinator.deciding(parts.learner, figures) as decide:
      _turn(parts, alone, decide)
      for _ in range(turns):
        yield _turn(parts, alone, decide)


def _make_alone(parts: parts_lib.Parts) -> Callable[[], None]:
  """Returns the devices' own work: an update without collectives."""
  updater = update_lib.Updater(parts.agent, parts.updater.devices)
  batch = updater.shard(parts.blank_batch)
  state = updater.replicate(parts.learner.state())

  def alone() -> None:
    nonlocal state
    # The first call traces it.
    with _without_collectives():
      state, *outputs = updater(state, batch, 0.0)
    jax.block_until_ready((state, outputs))

  return alone


@contextlib.contextmanager
def _without_collectives() -> Iterator[None]:
  """Makes collectives return each device's own value, where traced."""
  with contextlib.ExitStack() as patches:
    for name in ('pmean', 'pmax', 'psum'):
      patch = mock.patch.object(jax.lax, name, lambda x, axis_name: x)
      patches.enter_context(patch)
    yield


def _turn(
  parts: parts_lib.Parts,
  alone: Callable[[], None],
  decide: coordinator_lib.Decide,
) -> Turn:
  def cycle() -> None:
    decision = decide(True, False)
    item = parts.prefetcher.fetch()
    parts.learner.step(item, decision.progress)
    parts.learner.flush()
    # On all devices.
    jax.block_until_ready(jax.live_arrays())

  _fill(parts)
  seconds = []
  for work in (alone, cycle):
    # All processes begin at once.
    decide(True, False)
    start = time.perf_counter()
    work()
    seconds.append(time.perf_counter() - start)
  return Turn(*seconds)


def _fill(parts: parts_lib.Parts) -> None:
  """Inserts a batch of zeros."""
  table = parts.store.table(table_configs.TABLE)
  missing = sum(len(part.weight) for part in parts.blank_batch)
  while missing > 0:
    block = table.allocate()
    jax.tree.map(lambda x: x.fill(0), block.unroll)
    table.insert(block)
    missing -= block.width
