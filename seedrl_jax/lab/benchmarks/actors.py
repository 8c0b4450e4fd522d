"""Times the transport between remote actors and inference.

Actor processes step real environments and get random actions; the same
environments in this process are the baseline. A `probe` measures the latency
of actions while the actors run, and once without any.
"""

import contextlib
import queue
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

import grpc
import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import remote_stream, server, slot_allocator
from seedrl_jax.envs import base, factory
from seedrl_jax.lab import launching, tables
from seedrl_jax.lab.benchmarks import environments, timing
from seedrl_jax.net import addresses, credentials

# Environments of an actor, and groups of these, which alternate.
_ENVS, _GROUPS = 16, 2
# Between the probe's requests; without a pause it would itself be a load.
_PAUSE_SECONDS = 0.005
# Of each environment on average before the first window: actors make theirs
# after they have connected.
_FIRST_STEPS = 50


def measure(
  name: str,
  env: ml_collections.ConfigDict,
  num_actors: Sequence[int],
  windows: timing.Windows,
) -> Iterator[tables.Row]:
  """Yields a table row for each number of actors and each transport.

  `env` is the section `env` of a run's configuration.

  Raises:
    RuntimeError: if an actor fails.
  """
  num_bytes = wire.StreamCodec(factory.make_spec(env)).num_bytes(1)
  for count in (0, *num_actors):
    pool = _time_pool(env, count * _ENVS, windows) if count else None
    for transport in ('unix', 'tcp'):
      with tempfile.TemporaryDirectory(prefix='seedrl-bench-') as folder:
        address = f'unix:{folder}/a' if transport == 'unix' else '127.0.0.1:0'
        remote, latency = _time_actors(env, address, count, windows)
      yield {
        'case': f'{name}, {num_bytes:,} B',
        'transport': transport,
        'actors x envs': f'{count} x {_ENVS}',
        'in this process, steps/s': pool.text() if pool else '',
        'from actors, steps/s': remote.text() if remote else '',
        'share': f'{remote.median / pool.median:.0%}'
        if pool and remote
        else '',
        'latency p50, ms': f'{1000 * np.percentile(latency, 50):.2f}',
        'p99, ms': f'{1000 * np.percentile(latency, 99):.2f}',
      }


def _time_pool(
  env: ml_collections.ConfigDict, num_envs: int, windows: timing.Windows
) -> timing.Timing:
  stream = factory.make_stream(env, 1, num_envs, num_envs // _GROUPS)
  with contextlib.closing(stream):
    return timing.measure(environments.act_randomly(stream), windows)


def _time_actors(
  env: ml_collections.ConfigDict,
  address: str,
  num_actors: int,
  windows: timing.Windows,
) -> tuple[timing.Timing | None, list[float]]:
  """Returns steps per second, and the probe's latencies in seconds."""
  # One more environment, for the probe, which connects last.
  num_envs = num_actors * _ENVS
  stream = remote_stream.RemoteStream(
    factory.make_spec(env), num_envs + 1, num_envs + 1, 1, timeout=0.0
  )
  slots = slot_allocator.SlotAllocator(
    handshake.env_values(env), [stream], (1,)
  )
  serving = server.ActorServer(
    slots,
    [addresses.parse('--address', address)],
    credentials.Security(),
    timeout=60.0,
  )
  answer = environments.act_randomly(stream)
  with contextlib.ExitStack() as stack:
    # The actors, which are terminated, need not learn of an end.
    stack.callback(serving.close, False)
    address = serving.addresses[0]
    stack.enter_context(_actors(address, num_actors, stream.close))
    steps = 0
    while stream.num_connected < num_envs or steps < _FIRST_STEPS * num_envs:
      steps += answer()
    measured = timing.measure(answer, windows) if num_actors else None
    executor = stack.enter_context(futures.ThreadPoolExecutor(1, 'probe'))
    channel = stack.enter_context(grpc.insecure_channel(address))
    calls = max(20, round(100 * windows.number * windows.seconds))
    probing = executor.submit(probe, channel, stream.spec, calls)
    probing.add_done_callback(lambda _: stream.close())
    with contextlib.suppress(base.StreamClosed):
      while True:
        answer()
    return measured, probing.result()


@contextlib.contextmanager
def _actors(
  address: str, count: int, on_end: Callable[[], None]
) -> Iterator[None]:
  """Runs actors; calls `on_end` from a thread once one has ended.

  Raises:
    RuntimeError: at the end, if one had failed by itself.
  """
  flags = (
    f'--learner={address}',
    '--patience=60',
    f'--groups={_GROUPS}',
    f'--envs_per_group={_ENVS // _GROUPS}',
  )
  processes = [
    launching.start('actor', flags, stdout=subprocess.DEVNULL)
    for _ in range(count)
  ]
  with futures.ThreadPoolExecutor(max(1, count), 'watch-actors') as executor:
    for process in processes:
      executor.submit(process.wait).add_done_callback(lambda _: on_end())
    try:
      yield
    finally:
      codes = [process.poll() for process in processes]
      for process in processes:
        process.terminate()
      if failed := [code for code in codes if code]:
        raise RuntimeError(
          f'An actor of the benchmark ended by itself (exit code {failed[0]}); '
          'what it said is above.'
        )


def probe(
  channel: grpc.Channel, spec: types.StreamSpec, calls: int
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
    stream = environments.FreeStream(spec, 1, 1)
    seconds = []
    for sequence in range(calls):
      output = stream.recv()
      start = time.perf_counter()
      steps = codec.pack_steps(output, local_messages.NO_EPISODES, sequence)
      messages.put(steps)
      codec.unpack_actions(wire.parse(next(call)), 1, sequence)
      seconds.append(time.perf_counter() - start)
      time.sleep(_PAUSE_SECONDS)
    return seconds
  finally:
    messages.put(None)
    call.cancel()
