"""An actor without environments, a learner without a network, and messages."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.actor_side import actor
from seedrl_jax.actors.learner_side import remote_stream, server, slot_allocator
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import base
from seedrl_jax.net import addresses, credentials
from tests.patience import wait_until

SPEC = types.StreamSpec(
  observation={
    'image': types.ArraySpec((3, 2), np.dtype(np.uint8)),
    'more': {
      'flag': types.ArraySpec((), np.dtype(bool)),
      'vector': types.ArraySpec((2,), np.dtype(np.float32)),
    },
  },
  action=types.discrete(5),
  action_repeat=1,
  name='Toy-v0',
)
CODEC = wire.StreamCodec(SPEC)
FIRST, MID, LAST = map(int, types.StepType)
OPEN = credentials.Security()
METHOD = f'/{wire.SERVICE}/{wire.METHOD}'


def output(env_id: Any, step_type: int, value: int = 0) -> types.EnvOutput:
  """Returns steps whose values encode env_id and `value`."""
  ids = np.array(env_id, np.int32)
  number = ids + 10 * value
  image = np.broadcast_to(number[:, None, None], (len(ids), 3, 2))
  return types.EnvOutput(
    observation={
      'image': image.astype(np.uint8),
      'more': {
        'flag': number % 2 == 1,
        'vector': np.stack([number, -number], axis=1).astype(np.float32),
      },
    },
    reward=number.astype(np.float32) / 2,
    discount=np.ones(len(ids), np.float32),
    step_type=np.full(len(ids), step_type, np.uint8),
    env_id=ids,
  )


def episodes(*env_id: int) -> np.ndarray:
  """Returns an ended episode for each id."""
  ended = [base.Episode(i, i + 0.5, i + 3, i % 2 == 0) for i in env_id]
  return np.array(ended, base.EPISODE)


def steps(
  env_id: Any, step_type: int, value: int = 0, ended: tuple[int, ...] = ()
) -> bytes:
  """Returns a message with the values of `output`."""
  return CODEC.pack_steps(output(env_id, step_type, value), episodes(*ended))


def unpack(message: bytes) -> tuple[list[np.ndarray], np.ndarray]:
  return CODEC.unpack_steps(wire.parse(message))


def mutate(message: bytes, rng: np.random.Generator) -> bytes:
  """Returns a message with an error, or random bytes."""
  data = bytearray(message)
  kind = rng.integers(6)
  if kind == 0:
    return rng.bytes(int(rng.integers(0, 200)))
  if kind == 1:
    return bytes(data[: rng.integers(len(data))])
  if kind == 2:
    return bytes(data) + rng.bytes(int(rng.integers(1, 50)))
  if kind == 3:
    # The header alone: counts and sizes of any value.
    data[8 : wire.HEADER_BYTES] = rng.bytes(8)
    return bytes(data)
  for place in rng.integers(0, len(data), rng.integers(1, 8)):
    data[place] ^= 1 << rng.integers(8)
  return bytes(data)


class RunningGroup:
  """A group of environments in a thread of its own.

  Attributes:
    lines: its output.
    ended: what its `run` returned.
    error: what its `run` raised.
  """

  def __init__(self, address: str, make_local_actor=None, **options: Any):
    self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    self.ended: bool | None = None
    self.error: BaseException | None = None
    target = addresses.parse('--learner', address)
    values = {'security': OPEN, 'num_envs': 2, 'name': 'me'} | options
    self.group = actor.EnvGroup(
      actor.GroupOptions(target, **values), self.lines.put, make_local_actor
    )
    self._thread = threading.Thread(target=self._run)
    self._thread.start()

  def _run(self) -> None:
    try:
      self.ended = self.group.run()
    except Exception as e:
      self.error = e
    self.lines.put('over')

  def wait_for(self, text: str) -> str:
    while text not in (line := self.lines.get()):
      assert line != 'over', f'ended before {text!r}: {self.error}'
    return line

  def join(self) -> None:
    self._thread.join()


class Client:
  """Sends a server right and wrong messages of an actor."""

  def __init__(self, address: str, security: credentials.Security = OPEN):
    target = addresses.parse('--learner', address)
    self._channel = addresses.open_channel(target, security, ())
    self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    self.call: Any = self._channel.stream_stream(METHOD)(
      iter(self._out.get, None), metadata=security.metadata()
    )
    self.env_id = np.zeros(0, np.int32)  # within the group

  def say(self, message: bytes | None) -> None:
    self._out.put(message)

  def hear(self) -> wire.Message:
    return wire.parse(next(self.call))

  def join(self, num_envs: int, acts_itself: bool = False) -> handshake.Welcome:
    hello = handshake.Hello(num_envs, 'toy', acts_itself)
    self.say(handshake.pack_hello(hello))
    welcome = handshake.unpack_welcome(self.hear())
    self.env_id = np.arange(num_envs, dtype=np.int32)
    return welcome

  def step(self, step_type: int, value: int = 0) -> np.ndarray:
    """Sends a step of all environments; returns their actions."""
    self.say(steps(self.env_id, step_type, value))
    return CODEC.unpack_actions(self.hear(), len(self.env_id))

  def report(
    self, *values: Any, version: int = types.NO_VERSION
  ) -> wire.Message:
    """Sends a report of a version and `values`; returns the answer."""
    report = local_messages.Report(version, *values)
    self.say(local_messages.pack_report(report))
    return self.hear()

  def refused(self) -> tuple[grpc.StatusCode, str]:
    """Waits until the other side ends the stream; returns why."""
    try:
      for _ in self.call:
        pass
    except grpc.RpcError as e:
      return e.code(), e.details()
    raise AssertionError('The stream ended as if all was well.')

  def close(self) -> None:
    self.say(None)
    self.call.cancel()
    self._channel.close()


class Clock:
  """Makes a server's time pass."""

  def __init__(self, actor_server: server.ActorServer):
    """Replaces the clock of its event loop."""
    self._loop = actor_server.loop
    self._time = self._loop.time
    self._ahead = 0.0
    self._loop.time = lambda: self._time() + self._ahead

  def advance(self, seconds: float) -> None:
    self._ahead += seconds
    # Wakes the loop, which may sleep until a later time, or be closed by now.
    with contextlib.suppress(RuntimeError):
      self._loop.call_soon_threadsafe(lambda: None)

  def advance_until_ended(self, client: Client, seconds: float) -> None:
    """Advances again and again until a client's stream has ended."""

    def has_ended() -> bool:
      self.advance(seconds)
      return client.call.done()

    wait_until(has_ended)


class Inference:
  """Answers a stream's `batches`; an action encodes the environment's value."""

  def __init__(self, stream: remote_stream.RemoteStream):
    self.batches: list[types.EnvOutput] = []
    self.error: BaseException | None = None
    self._stream = stream
    self._thread = threading.Thread(target=self._run)
    self._thread.start()

  def _run(self) -> None:
    try:
      while True:
        batch = self._stream.recv()
        self._stream.take_dropped()
        self.batches.append(batch)
        self._stream.send(action(batch), batch.env_id)
    except BaseException as e:
      self.error = e

  def join(self) -> None:
    self._thread.join()


def action(batch: types.EnvOutput) -> np.ndarray:
  return (2 * batch.reward).astype(np.int32) % SPEC.action.num_values


def expected_action(env_id: np.ndarray, value: int) -> list[int]:
  return ((env_id + 10 * value) % SPEC.action.num_values).tolist()


PARAMETERS = {
  'bias': types.ArraySpec((), np.dtype(np.float32)),
  'kernel': types.ArraySpec((2, 3), np.dtype(np.float32)),
}


def local_offer(
  global_env_id: Sequence[np.ndarray] = (np.arange(100, 116),),
  version: Callable[[], int] = lambda: 7,
  agent: str = 'vtrace',
) -> slot_allocator.LocalOffer:
  """Returns an offer whose parameters equal their version."""

  def read() -> tuple[int, list[np.ndarray]]:
    number = version()
    return number, [np.full(s.shape, number) for s in PARAMETERS.values()]

  config = base_config.get_config()
  config.agent = agent
  return slot_allocator.LocalOffer(
    handshake.local_config(config),
    types.EnvSpec(SPEC, 120, 3),
    global_env_id,
    block_width=4,
    replay_address=lambda: 'localhost:8000',
    feed=local_messages.ParameterFeed(PARAMETERS, read),
  )


@contextlib.contextmanager
def learner(
  *listening: str,
  num_envs: int = 8,
  batch_size: int = 4,
  security: credentials.Security = OPEN,
  timeout: float = 600.0,
  spec: types.StreamSpec = SPEC,
  env: dict[str, Any] | None = None,
  local: slot_allocator.LocalOffer | None = None,
) -> Iterator[tuple[server.ActorServer, Inference]]:
  """Yields a server on loopback (or `listening`) with inference behind it."""
  stream = remote_stream.RemoteStream(spec, num_envs, batch_size, 1, 0.0)
  listening_addresses = [
    addresses.parse('--config.actors.addresses', text)
    for text in listening or ('127.0.0.1:0',)
  ]
  allocator = slot_allocator.SlotAllocator(
    env or {'id': spec.name}, [stream], (1, 2), local
  )
  actor_server = server.ActorServer(
    allocator, listening_addresses, security, timeout
  )
  inference = Inference(stream)
  try:
    yield actor_server, inference
  finally:
    actor_server.close(ended=False)
    inference.join()
    assert isinstance(inference.error, base.StreamClosed), inference.error
