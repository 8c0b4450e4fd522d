"""Tests for seedrl_jax/actors/learner_side/disconnected_actors.py."""

import asyncio

from seedrl_jax.actors.learner_side import disconnected_actors


def _wait(
  known: disconnected_actors.Absences, seconds: float, now: float
) -> None:
  asyncio.run(known.wait(seconds, now))


def test_nobody_is_waited_for_who_is_here_or_left_long_ago():
  known = disconnected_actors.Absences()
  known.note_away('back', 99.0)
  known.note_here('back')
  known.note_away('gone', 1.0)
  # Would hang, were anybody waited for.
  _wait(known, 1e9, 100.0)


def test_who_left_lately_is_waited_for_until_all_are_back():
  async def come_back(known: disconnected_actors.Absences) -> list[str]:
    waiting = asyncio.create_task(known.wait(1e9, 100.0))
    came = []
    for name in 'a', 'b':
      await asyncio.sleep(0)
      assert not waiting.done()
      known.note_here(name)
      came.append(name)
    await waiting
    return came

  known = disconnected_actors.Absences()
  known.note_away('a', 99.0)
  known.note_away('b', 98.0)
  assert asyncio.run(come_back(known)) == ['a', 'b']


def test_waiting_ends_in_time():
  known = disconnected_actors.Absences()
  known.note_away('a', 99.0)
  _wait(known, 0.0, 100.0)


def test_names_do_not_pile_up(monkeypatch):
  monkeypatch.setattr(disconnected_actors, '_MOST', 2)
  known = disconnected_actors.Absences()
  for name in 'a', 'b', 'a', 'c':
    known.note_away(name, 99.0)
  # The oldest is forgotten: "b", as "a" left again.
  known.note_here('a')
  known.note_here('c')
  _wait(known, 1e9, 100.0)
