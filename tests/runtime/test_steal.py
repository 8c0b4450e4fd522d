"""Tests for seedrl_jax/runtime/steal.py."""

import pytest

from seedrl_jax.runtime import steal

_FIRST = 'cpu  100 10 50 800 0 0 0 40 30 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n'


@pytest.mark.parametrize(
  ('second', 'share'),
  [
    # 100 ticks, 25 of them stolen; the guests' own 500 count as the user's.
    ('cpu  150 10 60 815 0 0 0 65 530 0\n', 0.25),
    # Nothing happened, or the count went back.
    (_FIRST, 0.0),
    ('cpu  200 10 50 800 0 0 0 39 30 0\n', 0.0),
    ('intr 1 2 3\n', 0.0),
    ('cpu  100 10 50 900\n', 0.0),
    (None, 0.0),
  ],
)
def test_share_is_of_the_ticks_since_the_last_call(tmp_path, second, share):
  path = tmp_path / 'stat'
  path.write_text(_FIRST)
  clock = steal.StealClock(path)
  if second is None:
    path.unlink()
  else:
    path.write_text(second)
  assert clock.share() == share
  assert clock.share() == 0
