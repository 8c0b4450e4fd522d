"""Tests for seedrl_jax/replay/reverb/client/table_info_poller.py."""

import queue
import threading

import pytest

from seedrl_jax.replay.reverb.client import table_info_poller

_NEVER = 3600.0
# A guard against a hang.
_SOON = 300.0


class _Ledger:
  waiting = False


class _Server:
  """Has news or not; tells which tables were asked for."""

  def __init__(self, news: bool):
    self.news = news
    self.asked: queue.SimpleQueue[str] = queue.SimpleQueue()

  def resync(self, name: str, counts: _Ledger) -> bool:
    assert counts.waiting
    self.asked.put(name)
    return self.news


def _start(
  news: bool, *waiting: str
) -> tuple[_Server, table_info_poller.Refresher, threading.Event]:
  ledgers = {name: _Ledger() for name in ('a', 'b', 'c')}
  for name in waiting:
    ledgers[name].waiting = True
  server, begun = _Server(news), threading.Event()
  return (
    server,
    table_info_poller.Refresher(ledgers, server.resync, begun),
    begun,
  )


def test_asks_again_and_again_for_tables_that_are_waited_for(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(table_info_poller, '_ALONE', 0.001)
  server, running, _ = _start(False, 'a', 'c')
  asked = [server.asked.get(timeout=_SOON) for _ in range(6)]
  running.close()
  assert asked == ['a', 'c'] * 3


def test_asks_at_once_where_others_were_noticed(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(table_info_poller, '_ALONE', 0.001)
  for name in '_FIRST', '_LONGEST', '_NOTICED':
    monkeypatch.setattr(table_info_poller, name, _NEVER)
  server, running, begun = _start(True, 'b')
  # Of the first round, which has news; from then on only for who begins.
  assert server.asked.get(timeout=_SOON) == 'b'
  for _ in range(3):
    begun.set()
    assert server.asked.get(timeout=_SOON) == 'b'
  running.close()


def test_closing_wakes_it(monkeypatch: pytest.MonkeyPatch):
  monkeypatch.setattr(table_info_poller, '_ALONE', _NEVER)
  server, running, _ = _start(False, 'a')
  running.close()
  assert not [t for t in threading.enumerate() if t.name == 'reverb-refresh']
  assert server.asked.qsize() <= 1
