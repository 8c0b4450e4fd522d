"""A store whose own server is killed during writes and samples."""

import collections
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from seedrl_jax.replay import base as replay
from seedrl_jax.replay.reverb.client import server_location, server_rules, store
from seedrl_jax.replay.reverb.server import server
from tests.patience import PATIENCE
from tests.replay.conftest import Toy

_WIDTH = 2


class _Killed:
  """A queue on a server that dies, and what went in and out."""

  def __init__(self, python: str, toy: Toy, folder: str):
    queue = toy.queue(64)
    rules = [server_rules.server_rules(queue, _WIDTH, batch_size=8)]
    process = server.ReverbServer(python, rules, f'{folder}/server')
    location = server_location.OwnServer(process, PATIENCE)
    self.store = store.ReverbStore([queue], toy.spec(), _WIDTH, location)
    self._folder = folder
    self._checkpoints = 0
    self._lock = threading.Lock()
    self._stop = threading.Event()
    self.progress = threading.Condition()
    self.inserted = 0
    self.sampled: list[int] = []
    self.error: BaseException | None = None
    self._threads = [
      threading.Thread(target=self._guard, args=(f,), daemon=True)
      for f in (self._write, self._read)
    ]
    for thread in self._threads:
      thread.start()

  def _guard(self, function) -> None:
    try:
      function()
    except replay.StoreClosed:
      pass
    except BaseException as e:
      with self.progress:
        self.error = e
        self.progress.notify_all()

  def _write(self) -> None:
    writer = self.store.table('t')
    while not self._stop.is_set():
      block = writer.allocate()
      # A checkpoint then falls between inserts.
      with self._lock:
        first = self.inserted
        block.unroll.env_id[:] = np.arange(first, first + _WIDTH)
        block.unroll.steps.reward[:] = block.unroll.env_id
        writer.insert(block)
        self.inserted += _WIDTH

  def _read(self) -> None:
    sampler = self.store.table('t').sampler(8)
    while not self._stop.is_set():
      sample = sampler.sample()
      with self.progress:
        for block in sample.blocks:
          ids = block.unroll.env_id.tolist()
          np.testing.assert_array_equal(block.unroll.steps.reward, [ids] * 3)
          self.sampled += ids
        self.progress.notify_all()
      sample.release()

  def wait_for_samples(self, count: int) -> None:
    with self.progress:
      goal = len(self.sampled) + count
      passed = self.progress.wait_for(
        lambda: self.error or len(self.sampled) >= goal, 2 * PATIENCE
      )
    if self.error:
      raise self.error
    assert passed, 'it hangs'

  def checkpoint(self) -> tuple[int, int]:
    """Saves; returns the earlier inserts and samples."""
    self._checkpoints += 1
    path = f'{self._folder}/replay/{self._checkpoints}'
    # Stops the writer, not the reader.
    with self._lock:
      with self.progress:
        before = self.inserted, len(self.sampled)
      self.store.checkpoint(path)
    return before

  def kill(self) -> None:
    os.kill(self.store.location._server._process.pid, signal.SIGKILL)

  def close(self) -> None:
    self._stop.set()
    self.store.close()
    for thread in self._threads:
      thread.join(PATIENCE)
      assert not thread.is_alive()


@pytest.fixture(name='killed')
def killed_fixture(
  server_python, toy, tmp_path, monkeypatch
) -> Iterator[_Killed]:
  monkeypatch.setattr(store, '_FLUSH_SECONDS', PATIENCE)
  new_queue = _Killed(server_python, toy, os.fspath(tmp_path))
  yield new_queue
  new_queue.close()


@pytest.mark.parametrize('times', [2, pytest.param(20, marks=pytest.mark.slow)])
def test_nothing_saved_is_lost_and_only_what_came_back_comes_twice(
  killed, times
):
  came_back: set[int] = set()
  may_be_lost: set[int] = set()
  for _ in range(times):
    killed.wait_for_samples(50)
    inserted, sampled = killed.checkpoint()
    killed.wait_for_samples(50)
    killed.kill()
    # What the server acknowledged after its checkpoint.
    may_be_lost.update(range(inserted, killed.inserted + 64))
    # More than a queue and a batch ahead, so all saved unrolls are out.
    killed.wait_for_samples(200)
    with killed.progress:
      ids = list(killed.sampled)
    lost = set(range(inserted)) - set(ids)
    assert lost <= may_be_lost, 'lost though it was saved'
    came_back |= {i for i in ids[sampled:] if i < inserted}
  counts = collections.Counter(ids)
  twice = {i for i, count in counts.items() if count > 1}
  assert twice <= came_back


def test_a_kill_before_the_first_checkpoint_starts_empty(killed):
  killed.wait_for_samples(50)
  killed.kill()
  killed.wait_for_samples(200)
