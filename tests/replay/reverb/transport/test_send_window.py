"""Tests of what flow control allows."""

import pytest

from seedrl_jax.replay.reverb.transport import http2, sender


@pytest.fixture(name='window')
def window_fixture() -> sender.SendWindow:
  return sender.SendWindow()


def test_first_window_is_that_of_the_protocol(window):
  assert window.wait()
  assert window.take(10**6) == 65_535
  assert window.take(1) == 0


def test_takes_what_is_wanted(window):
  assert window.take(1000) == 1000
  assert window.take(10**6) == 64_535


@pytest.mark.parametrize('to_call', [True, False])
def test_both_must_allow(window, to_call):
  window.take(65_535)
  window.add(10, to_stream=to_call)
  assert window.take(100) == 0
  window.add(7, to_stream=not to_call)
  assert window.take(100) == 7
  # Of the ten, three are left.
  window.add(100, to_stream=not to_call)
  assert window.take(100) == 3


def test_settings_change_the_call_alone(window):
  window.set_initial(100)
  assert window.take(1000) == 100
  window.set_initial(150)
  assert window.take(1000) == 50
  # The connection's is as it was.
  window.set_initial(http2.LARGEST_WINDOW)
  assert window.take(10**6) == 65_535 - 150


def test_settings_may_take_back_more_than_is_left(window):
  assert window.take(1000) == 1000
  window.set_initial(400)
  assert window.take(1) == 0
  window.add(600, to_stream=True)
  assert window.take(1) == 0
  window.add(1, to_stream=True)
  assert window.take(10) == 1


def test_settings_do_not_undo_updates(window):
  window.set_initial(0)
  window.add(5, to_stream=True)
  window.set_initial(3)
  assert window.take(100) == 8


def test_largest_window(window):
  with pytest.raises(http2.ProtocolError, match='2147483648'):
    window.set_initial(2**31)
  window.set_initial(2**31 - 1)
  assert window.take(10**6) == 65_535


@pytest.mark.parametrize(
  'give',
  [
    lambda window: window.add(1, to_stream=True),
    lambda window: window.set_initial(65_536),
  ],
)
def test_room_wakes_who_waits(window, threads, give):
  window.take(65_535)
  window.add(1, to_stream=False)
  taken = []

  def send():
    assert window.wait()
    taken.append(window.take(10))

  threads.start(send)
  give(window)
  assert threads.join() == []
  assert taken == [1]


def test_end_wakes_who_waits_and_who_comes_later(window, threads):
  window.take(65_535)
  waited = []
  for _ in range(2):
    threads.start(lambda: waited.append(window.wait()))
  window.end()
  assert threads.join() == []
  assert waited == [False, False]
  window.add(10, to_stream=True)
  window.add(10, to_stream=False)
  assert not window.wait()
