"""Tests for seedrl_jax/replay/reverb/client/silence.py."""

from seedrl_jax.replay.reverb.client import silence


class Clock:
  def __init__(self) -> None:
    self.now = 100.0

  def __call__(self) -> float:
    return self.now


def test_a_silence_is_told_sparingly_and_its_end_once():
  clock, said = Clock(), []
  noted = silence.Silence(said.append, clock)
  noted.answered('h:1')
  asked = noted.asked()
  for clock.now in range(102, 160, 2):
    noted.unanswered('h:1', asked)
    asked = noted.asked()
  for clock.now in 161, 162:
    noted.answered('h:1')
  assert said == [
    'Reverb at h:1 has not answered for 10 s.',
    'Reverb at h:1 has not answered for 20 s.',
    'Reverb at h:1 has not answered for 40 s.',
    'Reverb at h:1 answers again, after 61 s.',
  ]


def test_a_short_silence_is_not_told():
  clock, said = Clock(), []
  noted = silence.Silence(said.append, clock)
  for _ in range(5):
    asked = noted.asked()
    clock.now += 6.0
    noted.unanswered('h:1', asked)
    noted.answered('h:1')
  assert not said
