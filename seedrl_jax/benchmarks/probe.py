"""An actor that measures how long it waits for an action.

`actors` starts one beside the actors of a benchmark. It has one environment,
which takes no time, and asks at intervals, as an actor with other things to do
would: one that asked without a pause would be a load of its own.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import handshake, wire
from seedrl_jax.envs import statistics

_PAUSE_SECONDS = 0.005
_NO_EPISODES = statistics.EndedEpisodes(*([np.zeros(0)] * 5))


class Probe:
  """Asks a learner for actions until it has enough of them."""

  def __init__(self, address: str, calls: int, on_end: Callable[[], None]):
    """Starts to measure.

    Args:
      address: of the learner, as gRPC has it.
      calls: how many actions to wait for.
      on_end: called when there are as many, or none will come.
    """
    self._calls = calls
    self._on_end = on_end
    self._seconds: list[float] = []
    self._failure: BaseException | None = None
    self._stopped = threading.Event()
    # Has as many messages as the probe has put there and the call not taken.
    self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    self._channel = grpc.insecure_channel(address)
    self._call: Any = self._channel.stream_stream(
      f'/{wire.SERVICE}/{wire.METHOD}'
    )(iter(self._out.get, None))
    self._thread = threading.Thread(target=self._run, name='probe', daemon=True)
    self._thread.start()

  def result(self) -> list[float]:
    """Returns the seconds that each action took to come.

    Raises:
      BaseException: with which the measuring failed.
    """
    self._thread.join()
    if self._failure is not None:
      raise self._failure
    return self._seconds

  def stop(self) -> None:
    """Ends the stream; may be called at any time."""
    self._stopped.set()
    self._out.put(None)
    self._call.cancel()
    self._channel.close()
    self._thread.join()

  def _run(self) -> None:
    try:
      self._measure()
    except BaseException as e:
      self._failure = e
    finally:
      self._on_end()

  def _measure(self) -> None:
    self._out.put(handshake.pack_hello(handshake.Hello(1, '')))
    welcome = handshake.unpack_welcome(wire.parse(next(self._call)))
    codec = wire.StreamCodec(welcome.spec)
    step_type = types.StepType.FIRST
    for sequence in range(self._calls):
      output = _blank(welcome, step_type)
      start = time.perf_counter()
      self._out.put(codec.pack_steps(output, _NO_EPISODES, sequence))
      codec.unpack_actions(wire.parse(next(self._call)), 1, sequence)
      self._seconds.append(time.perf_counter() - start)
      step_type = types.StepType.MID
      if self._stopped.wait(_PAUSE_SECONDS):
        return


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
