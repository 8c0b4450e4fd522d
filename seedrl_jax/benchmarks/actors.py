"""Times the transport between remote actors and inference.

Actor processes step real environments and get random actions; the same
environments in this process are the baseline. A `probe` measures the latency
of actions beside the actors, and once without any.
"""

import contextlib
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import grpc
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import addresses, credentials, handshake, wire
from seedrl_jax.actors.learner_side import remote_stream, server, slot_allocator
from seedrl_jax.benchmarks import timing
from seedrl_jax.envs import base, factory, statistics
from seedrl_jax.runtime import nest

TRANSPORTS = ('unix', 'tcp')

# Groups of an actor's environments, which take turns.
_GROUPS = 2
_ACTOR = pathlib.Path(__file__).parents[2] / 'launch/actor.py'
# Between the probe's requests; without a pause it would itself be a load.
_PAUSE_SECONDS = 0.005
_FIRST, _MID = types.StepType.FIRST, types.StepType.MID
_NO_EPISODES = statistics.EndedEpisodes(*([np.zeros(0)] * 5))


class ActorsCase(NamedTuple):
  """What to measure.

  Attributes:
    env: the `env` section of a run's configuration.
    windows: for steps per second.
    calls: number of actions whose latency is measured.
  """

  name: str
  env: ml_collections.ConfigDict
  windows: timing.Windows
  calls: int


def measure(
  case: ActorsCase, num_actors: Sequence[int], envs_per_actor: Sequence[int]
) -> Iterator[dict[str, Any]]:
  """Yields the figures of each combination, ready for JSON.

  Raises:
    RuntimeError: if an actor fails.
  """
  spec = factory.make_spec(case.env)
  sizes = [(count, size) for size in envs_per_actor for count in num_actors]
  for count, size in [(0, 0), *sizes]:
    pool = _time_pool(case, count * size) if count else None
    for transport in TRANSPORTS:
      with tempfile.TemporaryDirectory(prefix='seedrl-bench-') as folder:
        address = f'unix:{folder}/a' if transport == 'unix' else 'localhost:0'
        with _serve(case, address, count * size) as (stream, serving):
          remote, latency = _time_actors(case, stream, serving, count)
      yield {
        'case': case.name,
        'transport': transport,
        'actors': count,
        'envs': count * size,
        'bytes_per_step': wire.StreamCodec(spec).num_bytes(1),
        'pool': pool and pool._asdict(),
        'remote': remote and remote._asdict(),
        'share': pool and remote and remote.median / pool.median,
        'latency_ms': {
          'p50': 1000 * float(np.percentile(latency, 50)),
          'p99': 1000 * float(np.percentile(latency, 99)),
        },
      }


def check_envs(envs_per_actor: Sequence[int]) -> None:
  """Raises ValueError if an actor's environments do not make equal groups."""
  for size in envs_per_actor:
    if size < _GROUPS or size % _GROUPS:
      raise ValueError(
        f'--envs_per_actor={size}: must be a multiple of {_GROUPS}.'
      )


def header() -> list[str]:
  """Returns the table's head."""
  return [
    '| case | transport | actors x envs | in this process, steps/s '
    '| from actors, steps/s | share | latency p50, ms | p99, ms |',
    '|---|---|---|---|---|---|---|---|',
  ]


def line(row: dict[str, Any]) -> str:
  """Returns a row of `measure` as a table row."""
  pool, remote, share = '', '', ''
  if row['actors']:
    pool, remote = (
      timing.Timing(**row[key]).text() for key in ('pool', 'remote')
    )
    share = f'{row["share"]:.0%}'
  per_actor = row['envs'] // max(1, row['actors'])
  latency = row['latency_ms']
  return (
    f'| {row["case"]}, {row["bytes_per_step"]:,} B | {row["transport"]} '
    f'| {row["actors"]} x {per_actor} | {pool} | {remote} | {share} '
    f'| {latency["p50"]:.2f} | {latency["p99"]:.2f} |'
  )


class ActorProcesses:
  """A context that starts actors, reports failed ones and ends all."""

  def __init__(self, address: str, on_end: Callable[[], None] | None = None):
    """Calls `on_end` in a thread if an actor ends early."""
    self._address = address
    self._on_end = on_end
    self._stopping = threading.Event()
    self._codes: list[int] = []
    self._watched: list[tuple[subprocess.Popen, threading.Thread]] = []

  def start(self, num_envs: int, *flags: str) -> None:
    """Starts an actor with `num_envs` environments and more flags."""
    process = subprocess.Popen(
      [
        *(sys.executable, _ACTOR, f'--learner={self._address}'),
        *('--patience=60', f'--groups={_GROUPS}'),
        f'--envs_per_group={num_envs // _GROUPS}',
        *flags,
      ],
      stdout=subprocess.DEVNULL,
    )
    name = f'watch-actor-{len(self._watched)}'
    thread = threading.Thread(
      target=self._watch, args=(process,), name=name, daemon=True
    )
    self._watched.append((process, thread))
    thread.start()

  def check(self) -> None:
    """Raises RuntimeError if an actor has failed."""
    failed = [code for code in self._codes if code]
    if failed:
      raise RuntimeError(
        f'An actor of the benchmark ended by itself (exit code {failed[0]}); '
        'what it said is above.'
      )

  def _watch(self, process: subprocess.Popen) -> None:
    code = process.wait()
    if self._stopping.is_set():
      return
    self._codes.append(code)
    if self._on_end is not None:
      self._on_end()

  def __enter__(self) -> 'ActorProcesses':
    return self

  def __exit__(self, *error: object) -> None:
    self._stopping.set()
    for process, _ in self._watched:
      process.terminate()
    for _, thread in self._watched:
      thread.join()


def _answers(stream: base.EnvStream, num_envs: int) -> Callable[[], int]:
  """Returns a function that answers a batch with random actions.

  It returns how many of the batch's environments are below `num_envs`.
  """
  rng = np.random.default_rng(0)

  def answer() -> int:
    env_id = stream.recv().env_id
    action = stream.spec.action.sample(rng, len(env_id))
    stream.send(action, env_id)
    return int(np.count_nonzero(env_id < num_envs))

  return answer


def _time_pool(case: ActorsCase, num_envs: int) -> timing.Timing:
  stream = factory.make_stream(case.env, 1, num_envs, num_envs // _GROUPS)
  with contextlib.closing(stream):
    return timing.measure(_answers(stream, num_envs), case.windows)


@contextlib.contextmanager
def _serve(
  case: ActorsCase, address: str, num_envs: int
) -> Iterator[tuple[remote_stream.RemoteStream, server.ActorServer]]:
  spec = factory.make_spec(case.env)
  # One more environment, for the probe.
  stream = remote_stream.RemoteStream(
    spec, num_envs + 1, num_envs + 1, min_batch_size=1, timeout=0.0
  )
  serving = server.ActorServer(
    slot_allocator.SlotAllocator(
      handshake.env_values(case.env), [stream], (1,)
    ),
    [addresses.parse('--address', address)],
    credentials.Security(),
    timeout=60.0,
  )
  try:
    yield stream, serving
  finally:
    # The actors, which are terminated, need not learn of an end.
    serving.close(False)


def _time_actors(
  case: ActorsCase,
  stream: remote_stream.RemoteStream,
  serving: server.ActorServer,
  num_actors: int,
) -> tuple[timing.Timing | None, list[float]]:
  """Returns steps per second, and the probe's latencies in seconds."""
  # The probe connects last and gets the last slot.
  num_envs = stream.num_envs - 1
  answer = _answers(stream, num_envs)
  measured = None
  address = serving.addresses[0]
  with (
    ActorProcesses(address, stream.close) as processes,
    futures.ThreadPoolExecutor(1, 'probe') as executor,
    grpc.insecure_channel(address) as channel,
  ):
    try:
      for _ in range(num_actors):
        processes.start(num_envs // num_actors)
      while stream.num_connected < num_envs:
        answer()
      if num_actors:
        measured = timing.measure(answer, case.windows)
      probing = executor.submit(probe, channel, stream.spec, case.calls)
      probing.add_done_callback(lambda _: stream.close())
      with contextlib.suppress(base.StreamClosed):
        while True:
          answer()
      latency = probing.result()
    except Exception:
      # A failed actor is the likely cause.
      processes.check()
      raise
  return measured, latency


def probe(
  channel: grpc.Channel, spec: base.StreamSpec, calls: int
) -> list[float]:
  """Returns each action's latency in seconds; ends if `channel` is closed."""
  # None ends the call.
  messages: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
  method = channel.stream_stream(f'/{wire.SERVICE}/{wire.METHOD}')
  call = method(iter(messages.get, None))
  try:
    messages.put(handshake.pack_hello(handshake.Hello(1, 'probe')))
    handshake.unpack_welcome(wire.parse(next(call)))
    codec = wire.StreamCodec(spec)
    seconds = []
    for sequence in range(calls):
      output = _blank(spec, _MID if sequence else _FIRST)
      start = time.perf_counter()
      messages.put(codec.pack_steps(output, _NO_EPISODES, sequence))
      codec.unpack_actions(wire.parse(next(call)), 1, sequence)
      seconds.append(time.perf_counter() - start)
      time.sleep(_PAUSE_SECONDS)
    return seconds
  finally:
    messages.put(None)
    call.cancel()


def _blank(spec: base.StreamSpec, step_type: int) -> types.EnvOutput:
  leaves = [
    np.zeros((1, *leaf.shape), leaf.dtype)
    for leaf in nest.flatten(spec.observation)
  ]
  return types.EnvOutput(
    observation=nest.unflatten(spec.observation, leaves),
    reward=np.zeros(1, np.float32),
    discount=np.ones(1, np.float32),
    step_type=np.full(1, step_type, np.uint8),
    env_id=np.zeros(1, np.int32),
  )
