"""Tests of the contract of `EnvStream`, for each of `KINDS`, and statistics."""

import threading
from typing import Any

import chex
import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.envs import base
from tests.envs import streams

KINDS = {
  'envpool': lambda: streams.config('CartPole-v1', max_episode_steps=6),
  'gymnasium': lambda: streams.toy('scripted'),
}
FIRST, _, LAST = types.StepType


@pytest.fixture(params=KINDS)
def section(request: pytest.FixtureRequest) -> Any:
  return KINDS[request.param]()


@pytest.mark.parametrize(('num_envs', 'batch_size'), [(6, 6), (6, 2)])
def test_outputs_fit_the_spec_and_every_environment_has_its_turn(
  section: Any, num_envs: int, batch_size: int
):
  stream = streams.make(section, num_envs, batch_size)
  assert (stream.num_envs, stream.batch_size) == (num_envs, batch_size)
  seen: set[int] = set()
  for _ in range(30 * num_envs // batch_size):
    output = stream.recv()
    streams.assert_fits(output, stream.spec)
    assert len(output.env_id) == batch_size
    seen |= set(output.env_id.tolist())
    stream.send(np.zeros(batch_size, np.int32), output.env_id)
  assert seen == set(range(num_envs))
  stream.close()


def test_episodes_are_well_formed(section: Any):
  stream = streams.make(section, 4, 2)
  outputs = streams.roll(stream, np.zeros((80, 2), np.int32))
  finished = 0
  for env in range(4):
    step_type = np.array(streams.column(outputs, 'step_type', env))
    reward = np.array(streams.column(outputs, 'reward', env))
    discount = np.array(streams.column(outputs, 'discount', env))
    first, last = step_type == FIRST, step_type == LAST
    assert first[0] and last.any()
    chex.assert_trees_all_equal(first[1:], last[:-1])
    assert (reward[first] == 0).all() and (reward[~first] > 0).all()
    assert (discount[~last] == 1).all()
    # Steps after the last LAST belong to an unfinished episode.
    finished += int((~first)[: np.flatnonzero(last)[-1] + 1].sum())
  episodes = stream.take_episodes()
  assert sum(e.length for e in episodes) == finished
  assert stream.take_episodes() == []


def test_any_order_of_a_batch_may_be_sent(section: Any):
  straight, turned = (streams.make(section, 4) for _ in '12')
  for t in range(10):
    a, b = straight.recv(), turned.recv()
    order_a, order_b = np.argsort(a.env_id), np.argsort(b.env_id)
    for x, y in zip(a, b, strict=True):
      chex.assert_trees_all_equal(x[order_a], y[order_b])
    action = (np.arange(4, dtype=np.int32) + t) % 2
    straight.send(action, np.arange(4, dtype=np.int32))
    turned.send(action[::-1], np.arange(4, dtype=np.int32)[::-1])


def test_closed_stream_gives_and_takes_nothing(section: Any):
  stream = streams.make(section, 8, 2)
  streams.roll(stream, np.zeros((9, 2), np.int32))
  # With steps under way.
  stream.close()
  stream.close()
  with pytest.raises(base.StreamClosed, match=stream.spec.name):
    stream.recv()
  with pytest.raises(base.StreamClosed, match=stream.spec.name):
    stream.send(np.zeros(2, np.int32), np.arange(2, dtype=np.int32))


@pytest.mark.parametrize('method', ['interrupt', 'close'])
def test_waiting_recv_wakes(section: Any, method: str):
  stream = streams.make(section, 2)
  stream.recv()
  waiting, ended = threading.Event(), threading.Event()

  def receive() -> None:
    waiting.set()
    with pytest.raises(base.StreamClosed):
      stream.recv()
    ended.set()

  thread = threading.Thread(target=receive, daemon=True)
  thread.start()
  assert waiting.wait(timeout=300)
  getattr(stream, method)()
  assert ended.wait(timeout=300)


def test_one_thread_may_send_what_another_received(section: Any):
  stream = streams.make(section, 4, 2)
  received: list[types.EnvOutput] = []
  arrived = threading.Semaphore(0)

  def receive() -> None:
    try:
      while True:
        received.append(stream.recv())
        arrived.release()
    except base.StreamClosed:
      arrived.release()

  thread = threading.Thread(target=receive, daemon=True)
  thread.start()
  for t in range(200):
    assert arrived.acquire(timeout=300)
    stream.send(np.zeros(2, np.int32), received[t].env_id)
  stream.close()
  thread.join(timeout=300)
  assert not thread.is_alive()


def test_actions_of_a_wrong_shape_are_refused(section: Any):
  stream = streams.make(section, 2)
  env_id = stream.recv().env_id
  with pytest.raises(ValueError, match=r'must be \[B\] and \[B\]'):
    stream.send(np.zeros((2, 1), np.int32), env_id)


def test_received_arrays_are_the_callers(section: Any):
  stream = streams.make(section, 4, 2)
  kept, copies = [], []
  for _ in range(20):
    output = stream.recv()
    kept.append(output)
    copies.append(types.EnvOutput(*(np.copy(x) for x in output)))
    stream.send(np.zeros(2, np.int32), np.copy(output.env_id))
  chex.assert_trees_all_equal(kept, copies)
  ids = stream.recv().env_id
  sent = ids.copy()
  ids[:] = 9
  stream.send(np.zeros(2, np.int32), sent)
  assert set(stream.recv().env_id.tolist()) <= set(range(4))


@pytest.mark.parametrize(
  'section', [streams.config('CartPole-v1'), streams.toy('seeded')]
)
def test_seeds_make_streams_equal_and_environments_different(section: Any):
  def first(seed: int) -> np.ndarray:
    stream = streams.make(section, 4, 4, seed)
    return jax.tree.leaves(stream.recv().observation)[-1]

  chex.assert_trees_all_equal(first(7), first(7))
  chex.assert_trees_all_equal(first(7)[1:], first(8)[:-1])
  assert len({x.tobytes() for x in first(7)}) == 4


@pytest.mark.parametrize(
  ('ids', 'consecutive'),
  [([3, 4, 5], True), ([7], True), ([5, 4, 3], False), ([3, 5, 4, 6], False)],
)
def test_only_consecutive_ascending_ids_become_a_slice(
  ids: list[int], consecutive: bool
):
  env_id = np.array(ids, np.int32)
  values = np.arange(100, 110)
  index = base.as_slice(env_id)
  assert isinstance(index, slice) == consecutive
  np.testing.assert_array_equal(values[index], values[env_id])


def _update(
  stats: base.EpisodeStatistics,
  reward: list[float],
  last: list[int],
  truncated: list[int],
  over: list[int] | None,
) -> None:
  stats.update(
    np.arange(len(reward), dtype=np.int32),
    np.array(reward, np.float32),
    np.array(last, bool),
    np.array(truncated, bool),
    None if over is None else np.array(over, bool),
  )


def test_lives_and_ends_of_all_kinds_in_one_batch():
  stats = base.EpisodeStatistics(np.zeros(5, int))
  none = [0] * 5
  _update(stats, [0] * 5, none, none, none)
  _update(stats, [1, 2, 3, 4, 5], none, none, none)
  # Continues; loses a life; the last life; truncated; real end, no `last`.
  ends = {'last': [0, 1, 1, 1, 0], 'truncated': [0, 0, 0, 1, 0]}
  _update(stats, [10] * 5, **ends, over=[0, 0, 1, 1, 1])
  assert stats.log.take() == [
    base.Episode(2, 13.0, 2, True),
    base.Episode(3, 14.0, 2, False),
  ]
  expected = [(11.0, 2), (12.0, 1), (0.0, 0), (0.0, 0), (15.0, 2)]
  assert [stats.so_far(i)[1:3] for i in range(5)] == expected
  assert stats.so_far(0) == base.Episode(0, 11.0, 2, False)
  # FIRST for all but 0 and 4; then environment 1 has two steps.
  _update(stats, [0] * 5, none, none, none)
  assert [stats.so_far(i).length for i in range(5)] == [3, 2, 0, 0, 3]


class _Counted:
  """Counts one environment's episodes, step by step."""

  def __init__(self) -> None:
    self.at_first, self.score, self.length = True, 0.0, 0

  def step(self, reward: float, last: bool, over: bool) -> None:
    self.length += not self.at_first
    self.score += reward
    self.at_first = last
    if last and over:
      self.score, self.length = 0.0, 0


@pytest.mark.parametrize('has_lives', [False, True])
@pytest.mark.parametrize('seed', range(2))
def test_random_batches_equal_counting_one_by_one(seed: int, has_lives: bool):
  rng = np.random.default_rng(seed)
  stats = base.EpisodeStatistics(np.zeros(6, int))
  counted = [_Counted() for _ in range(6)]
  expected = []
  for _ in range(200):
    start, stop = np.sort(rng.permutation(7)[:2])
    ids = np.arange(start, stop) if rng.random() < 0.5 else rng.permutation(6)
    first = np.array([counted[i].at_first for i in ids])
    reward = np.where(first, 0, rng.integers(-3, 4, len(ids)))
    last = ~first & (rng.random(len(ids)) < 0.3)
    over = last & (rng.random(len(ids)) < 0.5) if has_lives else last
    truncated = over & (rng.random(len(ids)) < 0.5)
    for i, env in enumerate(ids.tolist()):
      one = counted[env]
      score, length = one.score + reward[i], one.length + (not first[i])
      if over[i]:
        expected.append(base.Episode(env, score, length, not truncated[i]))
      one.step(reward[i], last[i], over[i])
    ids = ids.astype(np.int32)
    reward = reward.astype(np.float32)
    stats.update(ids, reward, last, truncated, over if has_lives else None)
  assert stats.log.take() == expected
  assert len(expected) > 20
  for env, one in enumerate(counted):
    assert stats.so_far(env).episode_return == one.score


def test_returns_do_not_lose_small_rewards():
  stats = base.EpisodeStatistics(np.zeros(1, int))
  for reward in (0, 2.0**24, 1, 1, 1):
    _update(stats, [reward], [0], [0], None)
  _update(stats, [0], [1], [0], None)
  assert stats.log.take()[0].episode_return == 2**24 + 3


def test_log_keeps_the_newest(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(base, '_MOST_BATCHES', 2)
  log = base.EpisodeLog()
  for i in range(3):
    columns = [i, i], [1.0, 2.0], [3, 3], [True, False], [2, 0]
    log.append([np.array(column) for column in columns])
  assert log.take() == [
    base.Episode(i, value, 3, value == 1.0, 2 * (value == 1.0))
    for i in (1, 2)
    for value in (1.0, 2.0)
  ]
  assert log.take() == []
