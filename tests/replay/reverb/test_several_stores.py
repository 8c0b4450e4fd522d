"""Stores, as of several processes, that share a table of one server."""

import contextlib
import threading

from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.client import (
  server_location,
  server_rules,
  store,
)
from tests.replay.conftest import PATIENCE
from tests.replay.reverb import shared_servers

# Fit the toy's smallest type; each writer writes half.
_NUMBERS = 240
# Unrolls of a block and of a batch; a larger one might wait for its rest.
_WIDTH = 2


def test_a_queue_loses_nothing_and_repeats_nothing(
  reverb_servers, toy, threads
):
  config = toy.queue(64)
  rules = server_rules.server_rules(config, _WIDTH, _WIDTH)
  server = shared_servers.SharedServer(reverb_servers, [rules])
  server.start()
  sampled: list[int] = []
  complete = threading.Event()

  def make() -> store.ReverbStore:
    return store.ReverbStore(
      [config],
      toy.spec(),
      _WIDTH,
      lambda tables: server_location.ExternalServer(
        server.address, tables, PATIENCE
      ),
      _WIDTH,
    )

  def write(first: int) -> None:
    with contextlib.closing(make()) as made:
      for number in range(first, first + _NUMBERS // 2, _WIDTH):
        toy.insert(made, 't', [number, number + 1])
      made.flush()

  def sample(made: store.ReverbStore) -> None:
    sampler = made.table('t').sampler(_WIDTH)
    with contextlib.suppress(replay.StoreClosed):
      while True:
        drawn = sampler.sample()
        sampled.extend(toy.numbers(drawn))
        drawn.release()
        if len(sampled) >= _NUMBERS:
          complete.set()

  readers = [make(), make()]
  for made in readers:
    threads.start(lambda made=made: sample(made))
  for first in (0, _NUMBERS // 2):
    threads.start(lambda first=first: write(first))
  assert complete.wait(PATIENCE)
  for made in readers:
    made.close()
  assert threads.join() == []
  with contextlib.closing(make()) as last:
    assert last.info()['t'].size == 0
  server.close()
  assert sorted(sampled) == list(range(_NUMBERS))
