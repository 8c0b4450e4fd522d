"""Tests for seedrl_jax/actors/learner_side/server_state.py."""

import asyncio

from seedrl_jax.actors.learner_side import server_state


def _wait(
  known: server_state.DisconnectedActors, seconds: float, now: float
) -> None:
  asyncio.run(known.wait(seconds, now))


def test_nobody_is_waited_for_who_is_here_or_left_long_ago():
  known = server_state.DisconnectedActors()
  known.add('back', 99.0)
  known.discard('back')
  known.add('gone', 1.0)
  # Would hang if it waited for an actor.
  _wait(known, 1e9, 100.0)


def test_who_left_lately_is_waited_for_until_all_are_back():
  async def come_back(known: server_state.DisconnectedActors) -> list[str]:
    waiting = asyncio.create_task(known.wait(1e9, 100.0))
    came = []
    for name in 'a', 'b':
      await asyncio.sleep(0)
      assert not waiting.done()
      known.discard(name)
      came.append(name)
    await waiting
    return came

  known = server_state.DisconnectedActors()
  known.add('a', 99.0)
  known.add('b', 98.0)
  assert asyncio.run(come_back(known)) == ['a', 'b']


def test_waiting_ends_in_time():
  known = server_state.DisconnectedActors()
  known.add('a', 99.0)
  _wait(known, 0.0, 100.0)


def test_names_do_not_pile_up(monkeypatch):
  monkeypatch.setattr(server_state, '_MAX_NAMES', 2)
  known = server_state.DisconnectedActors()
  for name in 'a', 'b', 'a', 'c':
    known.add(name, 99.0)
  # Drops the oldest: "b", as "a" was added again.
  known.discard('a')
  known.discard('c')
  _wait(known, 1e9, 100.0)
