"""Times the way from remote actors to inference and back.

Called by `launch/benchmark.py actors`. Actors are processes of their own, with
real environments; in place of a network, actions are drawn, so that what is
measured are environments and transport. The same environments in this process
are the measure of what that costs. How long an action is waited for is then
measured beside them by a `probe.Probe`, and first of all without any actor:
at light load, where nobody has to wait for a processor.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from seedrl_jax.actors import addresses, handshake, wire
from seedrl_jax.actors.learner_side import remote_stream, server
from seedrl_jax.benchmarks import actor_processes, timing
from seedrl_jax.benchmarks import probe as probe_lib
from seedrl_jax.envs import base, factory

TRANSPORTS = ('unix', 'tcp')
_GROUPS = actor_processes.GROUPS


class Length(NamedTuple):
  """How long to measure.

  Attributes:
    windows: of which medians are taken.
    seconds: least length of a window.
    calls: inference calls of which the latency is taken.
  """

  windows: int
  seconds: float
  calls: int


def measure(
  name: str,
  env: Any,
  num_actors: Sequence[int],
  envs_per_actor: Sequence[int],
  length: Length,
) -> Iterator[dict[str, Any]]:
  """Yields the figures of one combination after the other, ready for JSON.

  Args:
    name: of the case.
    env: the `env` section of a run's config.
    num_actors: numbers of actors' processes.
    envs_per_actor: environments of each, multiples of two.
    length: of the measurements.

  Raises:
    ValueError: where environments cannot be divided into groups.
  """
  check_envs(envs_per_actor)
  spec = factory.make_spec(env)
  sizes = [(c, size) for size in envs_per_actor for c in num_actors]
  for count, size in [(0, 0), *sizes]:
    pool = _time_pool(env, count * size, length) if count else None
    for transport in TRANSPORTS:
      with tempfile.TemporaryDirectory(prefix='seedrl-bench-') as folder:
        address = f'unix:{folder}/a' if transport == 'unix' else 'localhost:0'
        remote, latency = _time_actors(env, spec, address, count, size, length)
      yield {
        'case': name,
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
  """Raises ValueError where an actor's environments make no groups."""
  for size in envs_per_actor:
    if size < _GROUPS or size % _GROUPS:
      raise ValueError(
        f'--envs_per_actor={size}: must be a multiple of {_GROUPS}.'
      )


def header() -> list[str]:
  """Returns the lines above those of `line`."""
  return [
    '| case | transport | actors x envs | in this process, steps/s '
    '| from actors, steps/s | share | latency p50, ms | p99, ms |',
    '|---|---|---|---|---|---|---|---|',
  ]


def line(row: dict[str, Any]) -> str:
  """Returns a row of `measure` as a line of a table."""
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


def _answers(stream: base.EnvStream, num_envs: int) -> Callable[[], int]:
  """Returns what answers a batch.

  It returns how many of the first `num_envs` environments had a step in it.
  """
  rng = np.random.default_rng(0)

  def answer() -> int:
    env_id = stream.recv().env_id
    action = stream.spec.action.sample(rng, len(env_id))
    stream.send(action, env_id)
    return int(np.count_nonzero(env_id < num_envs))

  return answer


def _time_pool(env: Any, num_envs: int, length: Length) -> timing.Timing:
  stream = factory.make_stream(env, 1, num_envs, num_envs // _GROUPS)
  try:
    return timing.measure(
      _answers(stream, num_envs), length.windows, length.seconds
    )
  finally:
    stream.close()


def _time_actors(
  env: Any,
  spec: base.StreamSpec,
  address: str,
  num_actors: int,
  envs_per_actor: int,
  length: Length,
) -> tuple[timing.Timing | None, list[float]]:
  """Returns steps per second, and seconds that the probe waited."""
  num_envs = num_actors * envs_per_actor
  # One more for the probe.
  stream = remote_stream.RemoteStream(
    spec, num_envs + 1, num_envs + 1, min_batch_size=1, timeout=0.0
  )
  serving = server.ActorServer(
    spec,
    handshake.env_values(env),
    [stream],
    [addresses.parse('--address', address)],
    addresses.Security(),
    (1,),
    timeout=60.0,
  )
  # The probe comes last, and so gets the last slot.
  answer = _answers(stream, num_envs)
  measured = None
  with contextlib.ExitStack() as opened:
    opened.callback(serving.close, True)
    processes = opened.enter_context(
      actor_processes.ActorProcesses(serving.addresses[0], stream.close)
    )
    try:
      for _ in range(num_actors):
        processes.start(envs_per_actor)
      while stream.num_connected < num_envs:
        answer()
      if num_actors:
        measured = timing.measure(answer, length.windows, length.seconds)
      probe = probe_lib.Probe(serving.addresses[0], length.calls, stream.close)
      opened.callback(probe.stop)
      with contextlib.suppress(base.StreamClosed):
        while True:
          answer()
      latency = probe.result()
    except Exception:
      # Where one is gone, that is why.
      processes.check()
      raise
    # Before the server, which would wait for its next step.
    probe.stop()
    opened.callback(serving.close, True)
  return measured, latency
