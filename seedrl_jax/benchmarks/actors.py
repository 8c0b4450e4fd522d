"""Times the way from remote actors to inference and back.

Called by `launch/benchmark.py actors`. Actors are processes of their own, with
real environments; in place of a network, actions are drawn, so that what is
measured are environments and transport. The same environments in this process
are the measure of what that costs. A probe, one more actor with a single
environment that takes no time, measures how long an action is waited for.
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
from typing import Any

import grpc
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import (
  addresses,
  handshake,
  remote_stream,
  server,
  wire,
)
from seedrl_jax.benchmarks import timing
from seedrl_jax.envs import base, factory, statistics

TRANSPORTS = ('unix', 'tcp')
_ACTOR = pathlib.Path(__file__).parents[2] / 'launch/actor.py'
_GROUPS = 2
_NO_EPISODES = statistics.EndedEpisodes(*([np.zeros(0)] * 5))


def measure(
  name: str,
  env: Any,
  num_actors: Sequence[int],
  envs_per_actor: int,
  windows: int,
  seconds: float,
) -> Iterator[dict[str, Any]]:
  """Yields the figures of one combination after the other, ready for JSON.

  Args:
    name: of the case.
    env: the `env` section of a run's config.
    num_actors: numbers of actors' processes.
    envs_per_actor: environments of each, a multiple of two.
    windows: of which medians are taken.
    seconds: least length of a window.

  Raises:
    ValueError: where environments cannot be divided into groups.
  """
  if envs_per_actor < _GROUPS or envs_per_actor % _GROUPS:
    raise ValueError(
      f'--envs_per_actor={envs_per_actor}: must be a multiple of {_GROUPS}.'
    )
  spec = factory.make_spec(env)
  for count in num_actors:
    num_envs = count * envs_per_actor
    pool = _time_pool(env, spec, num_envs, windows, seconds)
    for transport in TRANSPORTS:
      with tempfile.TemporaryDirectory(prefix='seedrl-bench-') as folder:
        address = f'unix:{folder}/a' if transport == 'unix' else 'localhost:0'
        remote, latency = _time_actors(
          env, spec, address, count, envs_per_actor, windows, seconds
        )
      yield {
        'case': name,
        'transport': transport,
        'actors': count,
        'envs': num_envs,
        'bytes_per_step': wire.Layout(spec.observation).num_bytes(1),
        'pool': pool._asdict(),
        'remote': remote._asdict(),
        'share': remote.median / pool.median,
        'latency_ms': {
          'p50': 1000 * float(np.percentile(latency, 50)),
          'p99': 1000 * float(np.percentile(latency, 99)),
        },
      }


def header() -> list[str]:
  """Returns the lines above those of `line`."""
  return [
    '| case | transport | actors x envs | in this process, steps/s '
    '| from actors, steps/s | share | latency p50, ms | p99, ms |',
    '|---|---|---|---|---|---|---|---|',
  ]


def line(row: dict[str, Any]) -> str:
  """Returns a row of `measure` as a line of a table."""
  pool, remote = (timing.Timing(**row[key]) for key in ('pool', 'remote'))
  latency = row['latency_ms']
  return (
    f'| {row["case"]} | {row["transport"]} '
    f'| {row["actors"]} x {row["envs"] // row["actors"]} '
    f'| {pool.text()} | {remote.text()} | {row["share"]:.0%} '
    f'| {latency["p50"]:.2f} | {latency["p99"]:.2f} |'
  )


def _answers(stream: base.EnvStream, num_envs: int) -> Callable[[], int]:
  """Returns what answers a batch.

  It returns how many of the first `num_envs` environments had a step in it.
  """
  rng = np.random.default_rng(0)

  def answer() -> int:
    env_id = stream.recv().env_id
    action = rng.integers(stream.spec.num_actions, size=len(env_id))
    stream.send(action.astype(np.int32), env_id)
    return int(np.count_nonzero(env_id < num_envs))

  return answer


def _time_pool(
  env: Any, spec: base.StreamSpec, num_envs: int, windows: int, seconds: float
) -> timing.Timing:
  stream = factory.make_stream(env, 1, num_envs, num_envs // _GROUPS)
  try:
    return timing.measure(_answers(stream, num_envs), windows, seconds)
  finally:
    stream.close()


def _time_actors(
  env: Any,
  spec: base.StreamSpec,
  address: str,
  num_actors: int,
  envs_per_actor: int,
  windows: int,
  seconds: float,
) -> tuple[timing.Timing, list[float]]:
  """Returns steps per second, and seconds that the probe waited."""
  num_envs = num_actors * envs_per_actor
  # One more for the probe.
  stream = remote_stream.RemoteStream(
    spec, num_envs + 1, num_envs + 1, min_batch_size=1, timeout=0.0
  )
  listening = [addresses.parse('--address', address)]
  serving = server.ActorServer(
    spec,
    handshake.env_values(env),
    [stream],
    listening,
    addresses.Security(),
    (1,),
    timeout=60.0,
  )
  # The probe comes last, and so gets the last slot.
  answer = _answers(stream, num_envs)
  with contextlib.ExitStack() as opened:
    opened.callback(serving.close, True)
    for _ in range(num_actors):
      opened.enter_context(_actor(serving.addresses[0], envs_per_actor))
    while stream.num_connected < num_envs:
      answer()
    probe = _Probe(serving.addresses[0])
    opened.callback(probe.stop)
    measured = timing.measure(answer, windows, seconds)
    probe.end()
    while probe.is_alive():
      answer()
    opened.callback(serving.close, True)
  return measured, probe.seconds


@contextlib.contextmanager
def _actor(address: str, num_envs: int) -> Iterator[None]:
  """Starts an actor, and waits in the end until it has ended."""
  process = subprocess.Popen(
    [
      *(sys.executable, _ACTOR, f'--learner={address}', '--patience=60'),
      *(f'--groups={_GROUPS}', f'--envs_per_group={num_envs // _GROUPS}'),
      '--threads=1',
    ],
    stdout=subprocess.DEVNULL,
  )
  try:
    yield
  finally:
    process.terminate()
    process.wait()


class _Probe(threading.Thread):
  """An actor of one environment that is always ready.

  Attributes:
    seconds: how long each action took to come.
  """

  def __init__(self, address: str):
    """Starts to measure."""
    super().__init__(name='probe', daemon=True)
    self.seconds: list[float] = []
    self._ended = threading.Event()
    self._channel = grpc.insecure_channel(address)
    self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    self._call: Any = self._channel.stream_stream(
      f'/{wire.SERVICE}/{wire.METHOD}'
    )(iter(self._out.get, None))
    self.start()

  def end(self) -> None:
    """Lets the measuring end with the next action."""
    self._ended.set()

  def stop(self) -> None:
    """Ends the stream."""
    self._out.put(None)
    self._call.cancel()
    self._channel.close()
    self.join()

  def run(self) -> None:
    """Asks for one action after the other."""
    self._out.put(handshake.pack_hello(handshake.Hello(1, 'probe')))
    welcome = handshake.unpack_welcome(wire.parse(next(self._call)))
    layout = wire.Layout(welcome.spec.observation)
    step_type = types.StepType.FIRST
    while not self._ended.is_set():
      output = _blank(welcome, step_type)
      start = time.perf_counter()
      sequence = len(self.seconds)
      self._out.put(layout.pack_steps(output, _NO_EPISODES, sequence))
      wire.unpack_actions(wire.parse(next(self._call)), 1, sequence)
      self.seconds.append(time.perf_counter() - start)
      step_type = types.StepType.MID
    self._call.cancel()


def _blank(welcome: handshake.Welcome, step_type: int) -> types.EnvOutput:
  leaves = [
    np.zeros((1, *spec.shape), spec.dtype)
    for spec in wire.flatten(welcome.spec.observation)
  ]
  return types.EnvOutput(
    observation=wire.unflatten(welcome.spec.observation, leaves),
    reward=np.zeros(1, np.float32),
    discount=np.ones(1, np.float32),
    step_type=np.full(1, step_type, np.uint8),
    env_id=welcome.env_id,
  )
