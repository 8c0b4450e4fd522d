"""Tests for seedrl_jax/replay/reverb/client/table_info_poller.py."""

import queue
import threading
import types

import pytest

from seedrl_jax.replay.reverb.client import table_info_poller

_NEVER = 3600.0
# Bounds only failing tests.
_SOON = 300.0


class _Table:
  """Can be waited for, can have news; reports when it is asked."""

  def __init__(self, name: str, waiting: bool, news: bool, asked):
    self.limiter = types.SimpleNamespace(waiting=waiting)
    self._name = name
    self._news = news
    self._asked = asked

  def correct(self) -> bool:
    assert self.limiter.waiting
    self._asked.put(self._name)
    return self._news


def _start(
  news: bool, *waiting: str
) -> tuple[
  queue.SimpleQueue[str], table_info_poller.TableInfoPoller, threading.Event
]:
  asked: queue.SimpleQueue[str] = queue.SimpleQueue()
  tables = [_Table(name, name in waiting, news, asked) for name in 'abc']
  begun = threading.Event()
  return asked, table_info_poller.TableInfoPoller(tables, begun), begun


def test_asks_again_and_again_for_tables_that_are_waited_for(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(table_info_poller, '_ALONE', 0.001)
  asked, running, _ = _start(False, 'a', 'c')
  order = [asked.get(timeout=_SOON) for _ in range(6)]
  running.close()
  assert order == ['a', 'c'] * 3


def test_asks_at_once_where_others_were_noticed(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(table_info_poller, '_ALONE', 0.001)
  for name in '_FIRST', '_LONGEST', '_NOTICED':
    monkeypatch.setattr(table_info_poller, name, _NEVER)
  asked, running, begun = _start(True, 'b')
  # From the first round, which has news; later rounds follow new waits.
  assert asked.get(timeout=_SOON) == 'b'
  for _ in range(3):
    begun.set()
    assert asked.get(timeout=_SOON) == 'b'
  running.close()


def test_closing_wakes_it(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(table_info_poller, '_ALONE', _NEVER)
  asked, running, _ = _start(False, 'a')
  running.close()
  assert not [t for t in threading.enumerate() if t.name == 'reverb-poll']
  assert asked.qsize() <= 1
