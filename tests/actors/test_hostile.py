"""Sends a learner a hundred thousand wrong messages while it trains.

The learner is a process of its own and trains with a good actor meanwhile.
"""

import asyncio
import contextlib
import os
import pathlib
import re
import signal
from collections.abc import Iterator

import grpc
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages, wire
from tests.actors import counted, processes, toys

_MESSAGES = 100_000
_STREAMS = 24  # at once
_MEGABYTES = 32  # that the learner may grow by
_Code = grpc.StatusCode
_ENVS = 2
_HELLO = handshake.pack_hello(handshake.Hello(_ENVS, 'hostile'))
_CODEC = wire.StreamCodec(
  toys.SPEC._replace(observation=types.ArraySpec((8,), np.dtype(np.uint8)))
)
# Codes with which a learner ends a stream because of a message.
_REFUSALS = {
  _Code.INVALID_ARGUMENT,
  _Code.FAILED_PRECONDITION,
  _Code.RESOURCE_EXHAUSTED,
  # gRPC may end the stream of a message that is too large like this.
  _Code.CANCELLED,
  # For a first message that comes late, on a busy machine.
  _Code.DEADLINE_EXCEEDED,
}


def _steps(n: int, kind: int) -> bytes:
  """Returns valid steps of `n` environments."""
  return _CODEC.pack_steps(
    types.EnvOutput(
      np.zeros((n, 8), np.uint8),
      np.zeros(n, np.float32),
      np.ones(n, np.float32),
      np.full(n, kind, np.uint8),
      np.arange(n),
    ),
    wire.NO_EPISODES,
  )


def _spoil(is_first: bool, rng: np.random.Generator) -> bytes:
  """Returns a message with an error, if only in its order."""
  kind = rng.integers(8)
  step_type = toys.FIRST if is_first else toys.MID
  if kind == 0:
    # One that cannot come then.
    return _steps(_ENVS, toys.MID if is_first else 3)
  if kind == 1:
    return _steps(int(rng.integers(5)), step_type)
  if kind == 2:
    others = [_HELLO, toys.CODEC.pack_actions(np.zeros(_ENVS))]
    return others[rng.integers(2)]
  if kind == 3:
    values = np.full(_ENVS, rng.choice([np.nan, np.inf, -np.inf, 3e38]), '<f4')
    message = bytearray(_steps(_ENVS, step_type))
    start = wire.HEADER_BYTES + 8 * _ENVS
    message[start : start + values.nbytes] = values.tobytes()
    return bytes(message)
  if kind == 4:
    # Larger than expected, some of them by far.
    size = 3 * local_messages.MAX_REPORT_BYTES
    return rng.bytes(size if rng.random() < 0.05 else 10_000)
  if kind == 5:
    return toys.mutate(_HELLO, rng)
  return toys.mutate(_steps(_ENVS, step_type), rng)


async def _send(call: grpc.aio.StreamStreamCall, message: bytes) -> bytes:
  """Returns the answer, so that the message is known to have been read."""
  # If the stream has ended already, reading tells why.
  with contextlib.suppress(asyncio.InvalidStateError):
    await call.write(message)
  return await call.read()


async def _attack_once(
  call: grpc.aio.StreamStreamCall, rng: np.random.Generator
) -> int:
  """Sends one stream's messages; returns how many of them were hostile."""
  is_first, hostile = True, 0
  try:
    if rng.random() < 0.4:
      await _send(call, _HELLO)
      if rng.random() < 0.3:
        await _send(call, _steps(_ENVS, toys.FIRST))
        is_first = False
      if rng.random() < 0.1:
        # Half an exchange: sends steps and leaves before the answer.
        await call.write(_steps(_ENVS, toys.FIRST))
        return 0
    answer = None
    while answer is not grpc.aio.EOF:
      hostile += 1
      answer = await _send(call, _spoil(is_first, rng))
      is_first = False
  except grpc.aio.AioRpcError as e:
    # Streams that have just ended may still occupy slots that HELLO wants.
    assert e.code() in _REFUSALS, e
    assert hostile or e.code() != _Code.INVALID_ARGUMENT, e
  finally:
    call.cancel()
  return hostile


async def _attack(address: str, messages: int, seed: int) -> None:
  async with grpc.aio.insecure_channel(address) as channel:
    open_stream = channel.stream_stream(toys.METHOD)

    async def run(rng: np.random.Generator) -> None:
      hostile = 0
      while hostile < messages / _STREAMS:
        hostile += await _attack_once(open_stream(), rng)

    rngs = np.random.default_rng(seed).spawn(_STREAMS)
    await asyncio.gather(*map(run, rngs))


def _megabytes(pid: int) -> int:
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  match = re.search(r'VmRSS:\s*(\d+) kB', status)
  assert match is not None
  return int(match[1]) // 1024


@pytest.fixture
def training(
  tmp_path: pathlib.Path,
) -> Iterator[tuple[processes.Process, processes.Process, str]]:
  """Yields a learner, its only good actor, and its address."""
  (tmp_path / 'environments').mkdir()
  learner = processes.learner(
    tmp_path / 'run',
    tmp_path / 'record',
    '--config.replay.backend=embedded',
    '--config.log.every_seconds=0.5',
    '--config.actors.timeout=600',
    f'--config.actors.max_envs={4 + 2 * _STREAMS}',
    "--config.actors.addresses=('127.0.0.1:0',)",
    # It trains on garbage that looks like steps, but within bounds.
    '--config.loss.reward_clip=1',
    folder=str(tmp_path / 'environments'),
  )
  address = learner.wait_for(r'; actors at (\S+);')[1]
  actor = processes.actor(address)
  yield learner, actor, address
  learner.kill()
  actor.kill()


@pytest.mark.slow
def test_a_hundred_thousand_hostile_messages_harm_nobody(
  training: tuple[processes.Process, processes.Process, str],
  tmp_path: pathlib.Path,
):
  learner, actor, address = training
  actor.wait_for('Run ')
  actor.wait_for('Run ')
  # First, to allocate all memory that streams need.
  asyncio.run(_attack(address, _MESSAGES // 10, seed=1000))
  pid = learner.popen.pid
  before = _megabytes(pid), len(os.listdir(f'/proc/{pid}/fd'))
  asyncio.run(_attack(address, _MESSAGES, seed=0))
  after = _megabytes(pid), len(os.listdir(f'/proc/{pid}/fd'))
  assert after[0] - before[0] < _MEGABYTES
  # The attack's last connections may not be closed yet.
  assert after[1] - before[1] <= _STREAMS
  # Nor may it write what it likes to the terminal.
  assert 'GOAWAY' not in learner.text
  learner.wait_for('updates')
  assert learner.is_alive and actor.is_alive
  for process in learner, actor:
    assert process.end(signal.SIGTERM) == 0, process.text
  good = counted.names(tmp_path / 'environments')
  assert len(good) == 4
  tally = counted.tally(tmp_path / 'record', good)
  assert (tally.broken, tally.missing, tally.repeated) == (0, 0, 0)
  # All but those in flight at the end.
  taken = sum(counted.actions_taken(tmp_path / 'environments'))
  assert tally.steps > 0.9 * taken
