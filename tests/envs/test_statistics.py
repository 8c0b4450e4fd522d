"""Tests of `seedrl_jax.envs.statistics`."""

import threading

import chex
import numpy as np

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


def test_log_keeps_the_newest_and_counts_what_it_drops():
  log = statistics.EpisodeLog(max_size=2)
  _append(log, 0)
  _append(log, 1, 2, 3)
  assert log.dropped == 2
  _append(log, 4)
  assert log.dropped == 3
  assert log.take() == [_episode(3), _episode(4)]
  assert log.take() == []
  _append(log, 5)
  assert (log.take(), log.dropped) == ([_episode(5)], 3)


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
