"""Sends a learner a hundred thousand wrong messages while it trains.

The learner is a process of its own and trains with a good actor meanwhile.
"""

import asyncio
import collections
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


def _steps(n: int, sequence: int) -> bytes:
  """Returns valid steps of `n` environments."""
  first = types.StepType.MID if sequence else types.StepType.FIRST
  return _CODEC.pack_steps(
    types.EnvOutput(
      np.zeros((n, 8), np.uint8),
      np.zeros(n, np.float32),
      np.ones(n, np.float32),
      np.full(n, first, np.uint8),
      np.arange(n),
    ),
    local_messages.NO_EPISODES,
    sequence,
  )


def _spoil(sequence: int, rng: np.random.Generator) -> bytes:
  """Returns a message with an error, if only in its order."""
  kind = rng.integers(8)
  if kind == 0:
    # One that is repeated, or one after a gap.
    return _steps(_ENVS, max(0, sequence + int(rng.choice([-1, 1]))))
  if kind == 1:
    return _steps(int(rng.integers(5)), sequence)
  if kind == 2:
    others = [_HELLO, toys.CODEC.pack_actions(np.zeros(_ENVS), sequence)]
    return others[rng.integers(2)]
  if kind == 3:
    values = np.full(_ENVS, rng.choice([np.nan, np.inf, -np.inf, 3e38]), '<f4')
    message = bytearray(_steps(_ENVS, sequence))
    start = wire.HEADER_BYTES + 8 * _ENVS
    message[start : start + values.nbytes] = values.tobytes()
    return bytes(message)
  if kind == 4:
    # Larger than expected, some of them by far.
    size = 3 * local_messages.MAX_REPORT_BYTES
    return rng.bytes(size if rng.random() < 0.05 else 10_000)
  if kind == 5:
    return toys.mutate(_HELLO, rng)
  return toys.mutate(_steps(_ENVS, sequence), rng)


class _Attack:
  """Sends messages one by one, so that each is known to have been read.

  Attributes:
    answered: hostile messages that the learner accepted.
    refused: hostile messages by the code of their refusal.
    reasons: of refusals, without their numbers.
  """

  def __init__(self, channel: grpc.aio.Channel, messages: int):
    self.answered = 0
    self.refused: collections.Counter[_Code] = collections.Counter()
    self.reasons: collections.Counter[str] = collections.Counter()
    self._messages = messages
    self._open = channel.stream_stream(toys.METHOD)

  @property
  def read(self) -> int:
    """Hostile messages that the learner has answered or refused."""
    return self.answered + self.refused.total()

  async def run(self, seed: int) -> None:
    """Opens stream after stream, until there were enough messages."""
    rng = np.random.default_rng(seed)
    while self.read < self._messages:
      call = self._open()
      try:
        await self._stream(call, rng)
      except grpc.aio.AioRpcError as e:
        # Streams that have just ended may still occupy their slots.
        assert e.code() in _REFUSALS - {_Code.INVALID_ARGUMENT}, e
      finally:
        call.cancel()

  async def _stream(
    self, call: grpc.aio.StreamStreamCall, rng: np.random.Generator
  ) -> None:
    if rng.random() < 0.6:
      message = _spoil(0, rng) if rng.integers(2) else _HELLO
      message = toys.mutate(_HELLO, rng) if message == _HELLO else message
      await self._send_hostile(call, message)
      return
    await self._send(call, _HELLO)
    sequence = 0
    if rng.random() < 0.3:
      await self._send(call, _steps(_ENVS, 0))
      sequence = 1
    if rng.random() < 0.1:
      # Half an exchange: sends steps and leaves before the answer.
      await call.write(_steps(_ENVS, sequence))
      return
    while await self._send_hostile(call, _spoil(sequence, rng)):
      sequence += 1

  async def _send_hostile(
    self, call: grpc.aio.StreamStreamCall, message: bytes
  ) -> bool:
    """Returns whether the stream goes on; raises how it ended."""
    try:
      answer = await self._send(call, message)
    except grpc.aio.AioRpcError as e:
      assert e.code() in _REFUSALS, e
      self.refused[e.code()] += 1
      self.reasons[re.sub(r'\d+', '#', e.details() or '')] += 1
      return False
    self.answered += 1
    return answer is not grpc.aio.EOF

  async def _send(
    self, call: grpc.aio.StreamStreamCall, message: bytes
  ) -> bytes:
    """Returns the answer; EOF if the other side has ended the stream."""
    # If it has ended already, reading tells why.
    with contextlib.suppress(asyncio.InvalidStateError):
      await call.write(message)
    return await call.read()


async def _attack(address: str, messages: int, seed: int) -> _Attack:
  async with grpc.aio.insecure_channel(address) as channel:
    attack = _Attack(channel, messages)
    await asyncio.gather(*(attack.run(seed + i) for i in range(_STREAMS)))
  return attack


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
  attack = asyncio.run(_attack(address, _MESSAGES, seed=0))
  after = _megabytes(pid), len(os.listdir(f'/proc/{pid}/fd'))
  print(before, after, attack.answered, attack.refused, attack.reasons)
  assert attack.read >= _MESSAGES
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
