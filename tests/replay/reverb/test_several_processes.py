"""Processes that share the tables of one external server."""

import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import server_rules, store
from tests.replay.conftest import PATIENCE
from tests.replay.reverb import shared_servers, store_process

_ROOT = pathlib.Path(__file__).parents[3]
# Fit the toy's smallest type; each writer writes half.
_NUMBERS = 240


class _Processes:
  """A server, the processes that use it, and their samples."""

  def __init__(self, factory, config, stack: contextlib.ExitStack):
    self._stack = stack
    self._rules = dataclasses.asdict(config)
    width = store_process.WIDTH
    rules = server_rules.server_rules(config, width, width)
    self._server = shared_servers.SharedServer(factory, [rules])
    self._server.start()
    stack.callback(self._server.close)
    self._changed = threading.Condition()
    self.sampled: list[int] = []
    self._listeners: list[threading.Thread] = []

  def store(self) -> store.ReverbStore:
    made = store_process.make_store(self._server.address, self._rules)
    self._stack.callback(made.close)
    return made

  def writer(self, first: int, last: int) -> subprocess.Popen:
    return self._start('write', first=first, last=last)

  def sampler(self) -> subprocess.Popen:
    process = self._start('sample')
    thread = threading.Thread(target=self._listen, args=(process,), daemon=True)
    thread.start()
    self._listeners.append(thread)
    return process

  def _start(self, role: str, **task: int) -> subprocess.Popen:
    task = {'address': self._server.address, 'rules': self._rules} | task
    process = subprocess.Popen(
      [
        sys.executable,
        '-m',
        store_process.__name__,
        json.dumps({'role': role, **task}),
      ],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      cwd=_ROOT,
    )
    self._stack.callback(process.wait)
    self._stack.callback(process.kill)
    return process

  def _listen(self, process: subprocess.Popen) -> None:
    assert process.stdout
    for line in process.stdout:
      with self._changed:
        self.sampled += json.loads(line)
        self._changed.notify_all()

  def run(self) -> None:
    """Runs two writers of all numbers and two samplers to the end."""
    samplers = [self.sampler(), self.sampler()]
    half = _NUMBERS // 2
    writers = [self.writer(0, half), self.writer(half, _NUMBERS)]
    for writer in writers:
      assert writer.wait(PATIENCE) == 0
    self.wait_for_samples(_NUMBERS)
    for sampler in samplers:
      sampler.stdin.close()
    for sampler in samplers:
      assert sampler.wait(PATIENCE) == 0
    for thread in self._listeners:
      thread.join(PATIENCE)

  def wait_for_samples(self, count: int) -> None:
    with self._changed:
      passed = self._changed.wait_for(
        lambda: len(self.sampled) >= count, PATIENCE
      )
    assert passed, f'{len(self.sampled)} of {count} samples came'


@pytest.fixture(name='share')
def share_fixture(
  reverb_servers,
) -> Iterator[Callable[[table_configs.TableConfig], _Processes]]:
  with contextlib.ExitStack() as stack:
    yield lambda config: _Processes(reverb_servers, config, stack)


def test_a_queue_loses_nothing_and_repeats_nothing(share, toy):
  shared = share(toy.queue(64))
  shared.run()
  assert sorted(shared.sampled) == list(range(_NUMBERS))
  info = shared.store().info()['t']
  assert info.size == 0


def test_ratio_and_priorities_hold_for_all_together(share, toy):
  config = toy.items(
    max_size=2 * _NUMBERS,
    min_size=8,
    samples_per_insert=2.0,
    priority_exponent=1.0,
  )
  shared = share(config)
  shared.run()
  made = shared.store()
  limiter = made.location.link.server_info()['t'].rate_limiter_info
  debt = 2 * _NUMBERS - limiter.sample_stats.completed
  assert limiter.insert_stats.completed == _NUMBERS
  assert limiter.min_diff <= debt <= limiter.max_diff
  assert set(shared.sampled) <= set(range(_NUMBERS))
  # Sampled even numbers have the priority 0.
  zeros = {number for number in shared.sampled if number % 2 == 0}
  assert len(zeros) > _NUMBERS // 4
  sampler = made.table('t').sampler(store_process.WIDTH)
  drawn: set[int] = set()
  # The server still draws the last samples that ended processes asked for.
  writer = threading.Thread(target=_write_until_closed, args=(made, toy))
  writer.start()
  try:
    for _ in range(40):
      sample = sampler.sample()
      drawn.update(toy.numbers(sample))
      sample.release()
  finally:
    made.interrupt()
    writer.join(PATIENCE)
  assert not zeros & drawn


def test_who_did_not_hear_of_the_others_inserts_still_gets_on(
  share, toy, threads
):
  config = toy.items(
    max_size=100, min_size=8, samples_per_insert=2.0, priority_exponent=1.0
  )
  shared = share(config)
  ours, other = shared.store(), shared.store()
  # All that the ratio allows; our counts are still those of an empty table.
  threading.Thread(target=_write_until_closed, args=(other, toy)).start()
  threads.until(lambda: other.info()['t'].waiting_writers)
  # So our client admits this one, and the server holds it back.
  sampler = ours.table('t').sampler(store_process.WIDTH)
  toy.insert(ours, 't', [5, 7])
  sampler.sample().release()
  sampler.sample().release()


def _write_until_closed(made: store.ReverbStore, toy) -> None:
  with contextlib.suppress(replay.StoreClosed):
    while True:
      toy.insert(
        made,
        't',
        [1, 3],
      )
