"""Stores, as of several processes, that share the table of one server."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import (
  server_location,
  server_rules,
  store,
)
from tests.replay.conftest import PATIENCE, Toy
from tests.replay.reverb import shared_servers

# Fit the toy's smallest type; each writer writes half.
_NUMBERS = 240
# Unrolls of a block and of a batch; a larger one might wait for its rest.
_WIDTH = 2

_MakeStore = Callable[[], store.ReverbStore]


@pytest.fixture(name='share')
def share_fixture(
  reverb_servers, toy
) -> Iterator[Callable[[table_configs.TableConfig], _MakeStore]]:
  """Starts a server of a table; returns a maker of stores that use it."""
  with contextlib.ExitStack() as stack:

    def share(config: table_configs.TableConfig) -> _MakeStore:
      rules = server_rules.server_rules(config, _WIDTH, _WIDTH)
      server = shared_servers.SharedServer(reverb_servers, [rules])
      server.start()
      stack.callback(server.close)

      def location(tables):
        return server_location.ExternalServer(server.address, tables, PATIENCE)

      def make() -> store.ReverbStore:
        made = store.ReverbStore([config], toy.spec(), _WIDTH, location, _WIDTH)
        stack.callback(made.close)
        return made

      return make

    yield share


class _Samples:
  """What the samplers of all stores have drawn; even ones get priority 0."""

  def __init__(self, toy: Toy):
    self.numbers: list[int] = []
    self._toy = toy
    self._changed = threading.Condition()

  def draw(self, made: store.ReverbStore) -> None:
    """Draws until the store is interrupted."""
    sampler = made.table('t').sampler(_WIDTH)
    with contextlib.suppress(replay.StoreClosed):
      while True:
        sample = sampler.sample()
        numbers = self._toy.numbers(sample)
        sample.update_priorities(np.asarray(numbers) % 2.0)
        sample.release()
        with self._changed:
          self.numbers += numbers
          self._changed.notify_all()

  def wait(self) -> None:
    with self._changed:
      assert self._changed.wait_for(
        lambda: len(self.numbers) >= _NUMBERS, PATIENCE
      )


def _run(make: _MakeStore, toy: Toy, threads) -> list[int]:
  """Runs two writers of all numbers and two samplers; returns the samples."""

  def write(first: int) -> None:
    made = make()
    for number in range(first, first + _NUMBERS // 2, _WIDTH):
      toy.insert(made, 't', [number, number + 1])
    made.flush()

  samples = _Samples(toy)
  readers = [make(), make()]
  for made in readers:
    threads.start(lambda made=made: samples.draw(made))
  writers = type(threads)()
  for first in (0, _NUMBERS // 2):
    writers.start(lambda first=first: write(first))
  assert writers.join() == []
  samples.wait()
  for made in readers:
    made.interrupt()
  assert threads.join() == []
  for made in readers:
    # Otherwise the last priorities would be dropped.
    made.flush()
    made.close()
  return samples.numbers


def test_a_queue_loses_nothing_and_repeats_nothing(share, toy, threads):
  make = share(toy.queue(64))
  assert sorted(_run(make, toy, threads)) == list(range(_NUMBERS))
  assert make().info()['t'].size == 0


def test_ratio_and_priorities_hold_for_all_together(share, toy, threads):
  config = toy.items(
    max_size=2 * _NUMBERS,
    min_size=8,
    samples_per_insert=2.0,
    priority_exponent=1.0,
  )
  make = share(config)
  sampled = _run(make, toy, threads)
  made = make()
  limiter = made.location.link.server_info()['t'].rate_limiter_info
  debt = 2 * _NUMBERS - limiter.sample_stats.completed
  assert limiter.insert_stats.completed == _NUMBERS
  assert limiter.min_diff <= debt <= limiter.max_diff
  assert set(sampled) <= set(range(_NUMBERS))
  zeros = {number for number in sampled if number % 2 == 0}
  assert len(zeros) > _NUMBERS // 4
  sampler = made.table('t').sampler(_WIDTH)
  drawn: set[int] = set()
  # The server still draws the last samples that closed stores asked for.
  threads.start(lambda: _write_until_closed(made, toy))
  for _ in range(40):
    sample = sampler.sample()
    drawn.update(toy.numbers(sample))
    sample.release()
  made.interrupt()
  assert threads.join() == []
  assert not zeros & drawn


def _write_until_closed(made: store.ReverbStore, toy: Toy) -> None:
  with contextlib.suppress(replay.StoreClosed):
    while True:
      toy.insert(made, 't', [1, 3])
