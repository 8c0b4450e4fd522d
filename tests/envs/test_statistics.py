"""Tests of `seedrl_jax.envs.statistics`."""

import threading

import chex
import numpy as np
import pytest

from seedrl_jax.envs import base, statistics

NONE = np.zeros(2, bool)
BOTH = np.array([0, 1], np.int32)


def _episode(i: int) -> base.Episode:
  return base.Episode(i, float(i), 1, 4, True)


def _update(
  stats: statistics.EpisodeStatistics,
  env_id: list[int],
  reward: list[float],
  last: list[int] | None = None,
  truncated: list[int] | None = None,
  over: list[int] | None = None,
) -> None:
  zeros = [0] * len(env_id)
  stats.update(
    np.array(env_id, np.int32),
    np.array(reward, np.float32),
    np.array(last or zeros, bool),
    np.array(truncated or zeros, bool),
    None if over is None else np.array(over, bool),
  )


def test_first_is_no_step_and_scores_start_anew():
  stats = statistics.EpisodeStatistics(1, action_repeat=4)
  for _ in range(2):
    _update(stats, [0], [0.0])
    _update(stats, [0], [1.5])
    _update(stats, [0], [-0.5], last=[1])
  assert stats.log.take() == [base.Episode(0, 1.0, 2, 8, True)] * 2


def test_environments_are_kept_apart_in_any_order_and_subset():
  stats = statistics.EpisodeStatistics(3, action_repeat=1)
  _update(stats, [2, 0], [0, 0])
  _update(stats, [1, 2], [0, 5])
  _update(stats, [0, 2], [7, 6], last=[0, 1])
  _update(stats, [1, 0], [3, 1], last=[1, 1], truncated=[0, 1])
  assert stats.log.take() == [
    base.Episode(2, 11.0, 2, 2, True),
    base.Episode(1, 3.0, 1, 1, True),
    base.Episode(0, 8.0, 2, 2, False),
  ]


def test_lost_life_goes_on_and_its_reset_is_no_step():
  stats = statistics.EpisodeStatistics(1, action_repeat=1)
  _update(stats, [0], [0], over=[0])
  _update(stats, [0], [2], last=[1], over=[0])
  _update(stats, [0], [0], over=[0])
  _update(stats, [0], [3], over=[0])
  assert stats.log.take() == []
  _update(stats, [0], [4], last=[1], over=[1])
  assert stats.log.take() == [base.Episode(0, 9.0, 3, 3, True)]


def test_lives_and_ends_of_all_kinds_in_one_batch():
  stats = statistics.EpisodeStatistics(5, action_repeat=4)
  ids = [0, 1, 2, 3, 4]
  _update(stats, ids, [0] * 5, over=[0] * 5)
  _update(stats, ids, [1, 2, 3, 4, 5], over=[0] * 5)
  # Continues; loses a life; the last life; truncated; real end, no `last`.
  ends = {'last': [0, 1, 1, 1, 0], 'truncated': [0, 0, 0, 1, 0]}
  _update(stats, ids, [10] * 5, **ends, over=[0, 0, 1, 1, 1])
  assert stats.log.take() == [
    base.Episode(2, 13.0, 2, 8, True),
    base.Episode(3, 14.0, 2, 8, False),
  ]
  expected = [(11.0, 2), (12.0, 1), (0.0, 0), (0.0, 0), (15.0, 2)]
  assert [stats.so_far(i) for i in ids] == expected
  # FIRST for all but 0 and 4; then environment 1 has two steps.
  _update(stats, ids, [0] * 5, over=[0] * 5)
  assert [stats.so_far(i)[1] for i in ids] == [3, 2, 0, 0, 3]


def test_several_lives_are_one_episode():
  stats = statistics.EpisodeStatistics(1, action_repeat=1)
  for _ in range(2):
    for life in range(3):
      _update(stats, [0], [0], over=[0])
      _update(stats, [0], [-2], over=[0])
      _update(stats, [0], [5], last=[1], over=[int(life == 2)])
    assert stats.log.take() == [base.Episode(0, 9.0, 6, 6, True)]


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
@pytest.mark.parametrize('seed', range(4))
def test_random_batches_equal_counting_one_by_one(seed: int, has_lives: bool):
  rng = np.random.default_rng(seed)
  stats = statistics.EpisodeStatistics(6, action_repeat=2)
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
        expected.append(
          base.Episode(env, score, length, 2 * length, not truncated[i])
        )
      one.step(reward[i], last[i], over[i])
    ids = ids.astype(np.int32)
    reward = reward.astype(np.float32)
    stats.update(ids, reward, last, truncated, over if has_lives else None)
  assert stats.log.take() == expected
  assert len(expected) > 20
  for env, one in enumerate(counted):
    assert stats.so_far(env)[0] == one.score


def test_returns_do_not_lose_small_rewards():
  stats = statistics.EpisodeStatistics(1, action_repeat=1)
  _update(stats, [0], [0])
  _update(stats, [0], [2.0**24])
  for _ in range(3):
    _update(stats, [0], [1])
  _update(stats, [0], [0], last=[1])
  assert stats.log.take()[0].episode_return == 2**24 + 3


def test_inputs_are_left_alone():
  stats = statistics.EpisodeStatistics(2, action_repeat=1)
  reward = np.array([1, 2], np.float32)
  last = np.array([True, False])
  stats.update(BOTH, reward, last, NONE, last)
  chex.assert_trees_all_equal(reward, np.array([1, 2], np.float32))
  chex.assert_trees_all_equal(last, np.array([True, False]))


def _append(log: statistics.EpisodeLog, *numbers: int) -> None:
  episodes = map(_episode, numbers)
  columns = (np.array(column) for column in zip(*episodes, strict=True))
  log.append(statistics.EndedEpisodes(*columns))


def test_log_keeps_the_newest_and_counts_what_it_drops(monkeypatch):
  monkeypatch.setattr(statistics, '_MOST_EPISODES', 2)
  log = statistics.EpisodeLog()
  _append(log, 0)
  _append(log, 1, 2, 3)
  assert log.dropped == 2
  _append(log, 4)
  assert log.dropped == 3
  assert log.take() == [_episode(3), _episode(4)]
  assert log.take() == []
  _append(log, 5)
  assert (log.take(), log.dropped) == ([_episode(5)], 3)


def test_log_drops_whole_batches_and_the_start_of_one(monkeypatch):
  monkeypatch.setattr(statistics, '_MOST_EPISODES', 3)
  log = statistics.EpisodeLog()
  for numbers in ((0,), (1,), (2, 3, 4, 5, 6, 7)):
    _append(log, *numbers)
  assert log.dropped == 5
  assert log.take() == [_episode(5), _episode(6), _episode(7)]


def test_log_loses_nothing_between_threads():
  log = statistics.EpisodeLog()

  def add() -> None:
    for i in range(500):
      _append(log, i)

  threads = [threading.Thread(target=add) for _ in range(2)]
  for thread in threads:
    thread.start()
  taken: list[base.Episode] = []
  while any(thread.is_alive() for thread in threads):
    taken += log.take()
  taken += log.take()
  assert sorted(e.env_id for e in taken) == sorted([*range(500)] * 2)
