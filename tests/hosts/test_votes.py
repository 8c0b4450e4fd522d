"""Tests for the votes of hosts, and for reports of lost hosts."""

import concurrent.futures
import contextlib
import socket
from collections.abc import Iterator

import pytest

from seedrl_jax.hosts import coordinator, votes
from tests.patience import wait_until

# Guards against hangs; a busy machine may take long.
_LONG = 600.0
_RESUME = 'start all hosts again to resume from the last checkpoint.'


class _Hosts:
  """A server and the clients of all hosts, in this process."""

  def __init__(self, joining: int = 2):
    self.server = votes.VoteServer(('127.0.0.1', 0), 'secret', 2, _LONG)
    self.address = ('127.0.0.1', self.server.port)
    self.all: list[votes.VoteClient] = []
    # Says nothing, and delays nobody.
    self._silent = socket.create_connection(self.address, _LONG)
    for index in range(joining):
      self.join(index, 2)

  def join(self, index: int, count: int) -> votes.VoteClient:
    host = votes.VoteClient(self.address, 'secret', index, count, _LONG)
    self.all.append(host)
    return host

  def gather(self, *values: object) -> list[list[object]]:
    with concurrent.futures.ThreadPoolExecutor() as pool:
      calls = [
        pool.submit(host.gather, value)
        for host, value in zip(self.all, values, strict=True)
      ]
      return [call.result(_LONG) for call in calls]

  def close(self) -> None:
    self._silent.close()
    for host in self.all:
      host.leave()
    self.server.close()


@pytest.fixture
def hosts() -> Iterator[_Hosts]:
  new_hosts = _Hosts()
  yield new_hosts
  new_hosts.close()


def test_every_host_hears_all_values_by_index(hosts: _Hosts):
  for turn in range(3):
    values = [{'turn': turn, 'x': 0.5}, [1, 'two']]
    assert hosts.gather(*values) == [values] * 2


def test_values_wait_for_the_last_host(hosts: _Hosts):
  first, second = hosts.all
  with concurrent.futures.ThreadPoolExecutor() as pool:
    waiting = pool.submit(first.gather, 'early')
    # Once these later messages arrive, the vote still has no result.
    second.ask_to_stop()
    while not (first.stop_wanted and second.stop_wanted):
      assert not waiting.done()
    assert second.gather('late') == ['early', 'late']
    assert waiting.result(_LONG) == ['early', 'late']


def test_who_joins_late_hears_of_the_stop():
  late = _Hosts(joining=1)
  (first,) = late.all
  first.ask_to_stop()
  while not first.stop_wanted:
    assert not first.lost
  late.join(1, 2)
  # Messages arrive in order.
  late.gather(1, 2)
  assert late.all[1].stop_wanted
  late.close()


def test_a_closed_connection_is_a_loss_to_who_waits(hosts: _Hosts):
  first, second = hosts.all
  with concurrent.futures.ThreadPoolExecutor() as pool:
    waiting = pool.submit(first.gather, 0)
    second._wire.close()
    with pytest.raises(coordinator.HostLost) as raised:
      waiting.result(_LONG)
  expected = f'Host 1 is gone (its connection was closed); {_RESUME}'
  assert str(raised.value) == first.lost == expected
  # It gets no message, but finds out.
  assert second.wait_lost(_LONG).startswith('Host 0 is gone')
  with pytest.raises(coordinator.HostLost):
    first.gather(1)


def test_a_host_that_fails_says_why(hosts: _Hosts):
  hosts.all[1].leave('OSError: broken')
  assert hosts.all[0].wait_lost(_LONG) == (
    f'Host 1 has failed (OSError: broken); {_RESUME}'
  )


def test_leaving_is_no_loss(hosts: _Hosts):
  hosts.all[1].leave()
  hosts.all[0].leave()
  hosts.server.close()
  assert [host.lost for host in hosts.all] == ['', '']


@pytest.fixture(name='wires')
def wires_fixture() -> Iterator[list[votes.HostWire]]:
  """Both ends of a connection."""
  with socket.create_server(('127.0.0.1', 0)) as listener:
    first = socket.create_connection(listener.getsockname())
    wires = [votes.HostWire(s) for s in (first, listener.accept()[0])]
  yield wires
  for wire in wires:
    wire.close()


def test_a_process_that_is_frozen_is_gone(wires: list[votes.HostWire]):
  wires[0].set_timeout(0.2)
  # It sends that it is there, and hears nothing.
  assert wires[1].receive() == ['alive']
  assert wires[0].receive() is None
  assert wires[0].end == 'it was silent for 0.2 s'


@pytest.mark.parametrize(
  'index, count, sentence',
  [
    (1, 2, '--process_id=1: there is a host 1 already; give every host anothe'),
    (2, 3, '--num_processes=3: host 0 has --num_processes=2; give all hosts t'),
    (-1, 2, '--num_processes=2: '),
  ],
)
def test_hosts_of_another_run_are_refused(
  hosts: _Hosts, index: int, count: int, sentence: str
):
  hosts.gather(1, 2)
  with pytest.raises(coordinator.HostLost, match=sentence):
    hosts.join(index, count).gather(0)
  hosts.all.pop().leave()
  # The others do not notice.
  assert hosts.gather(1, 2) == [[1, 2]] * 2


@pytest.mark.parametrize(
  'message', [b'\n', b'GET / HTTP/1.1\r\n\r\n', b'["hello","no",1,2]\n']
)
def test_strangers_are_shut_out(hosts: _Hosts, message: bytes):
  with socket.create_connection(hosts.address, _LONG) as stranger:
    stranger.sendall(message)
    stranger.shutdown(socket.SHUT_WR)
    # A reset, if there was more to read.
    with contextlib.suppress(ConnectionResetError):
      assert stranger.recv(1) == b''
  assert hosts.gather(1, 2) == [[1, 2]] * 2


@pytest.mark.parametrize('is_late', [False, True])
def test_a_host_that_does_not_join_is_named(is_late: bool):
  server = votes.VoteServer(('127.0.0.1', 0), '', 2, join_timeout=0.2)
  address = ('127.0.0.1', server.port)
  wait_until(lambda: not is_late or server._lost)
  host = votes.VoteClient(address, '', 0, 2, _LONG)
  with pytest.raises(coordinator.HostLost, match='Host 1 did not join for'):
    host.gather(0)
  host.leave()
  server.close()
