"""Tests for learner_side/actor_session.py: actors that act themselves."""

import asyncio
import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.actors import handshake, local_messages, wire
from seedrl_jax.actors.learner_side import actor_session
from seedrl_jax.actors.learner_side import server as server_lib
from tests.actors import toys

_Code = grpc.StatusCode
_SPECS = tuple(toys.PARAMETERS.values())


def test_reports_are_counted_and_answered_with_parameters():
  versions = iter([5, 5, 5, 6, 6, 6, 6, 6, 6, 6])
  offer = toys.local_offer(version=lambda: next(versions))
  with toys.learner(local=offer) as (server, inference):
    client = toys.Client(server.addresses[0])
    client.join(3, handshake.LOCAL)
    newer = local_messages.unpack_parameters(
      client.report(0, env_steps=4), _SPECS
    )
    assert newer is not None and newer[0] == 5
    assert [x.shape for x in newer[1]] == [(), (2, 3)]
    nothing = client.report(1, version=5, episodes=toys.episodes(1))
    assert local_messages.unpack_parameters(nothing, _SPECS) is None
    work = {'env_steps': 3, 'store_wait': 0.5, 'store_bytes': 9}
    newer = local_messages.unpack_parameters(
      client.report(2, version=5, **work), _SPECS
    )
    assert newer is not None and (newer[1][1] == 6).all()
    assert server.reported == local_messages.ReportTotals(7, 0.5, 9)
    assert [e.env_id for e in server.streams[0].take_episodes()] == [1]
    assert server.num_connected == 3
    assert server.num_bytes > 3 * 7 * 4
    client.close()
  # Inference was not involved.
  assert inference.batches == []


def test_it_is_told_how_to_act_and_where_unrolls_go():
  with toys.learner(local=toys.local_offer()) as (server, _):
    client = toys.Client(server.addresses[0])
    assert client.join(2).local is None
    other = toys.Client(server.addresses[0])
    welcome = other.join(2, handshake.LOCAL)
    assert welcome.env_id.tolist() == [2, 3]
    local = welcome.local
    assert local is not None
    assert local.global_env_id.tolist() == [102, 103]
    assert local.replay_address == 'localhost:8000'
    assert local.parameters == toys.PARAMETERS
    client.close()
    other.close()


def test_without_reverb_it_is_refused_on_both_sides(
  caplog: pytest.LogCaptureFixture,
):
  caplog.set_level('WARNING')
  with toys.learner() as (server, _):
    client = toys.Client(server.addresses[0])
    hello = handshake.Hello(2, 'toy', handshake.LOCAL)
    client.say(handshake.pack_hello(hello))
    code, details = client.refused()
    assert code == _Code.FAILED_PRECONDITION
    assert '--config.actors.local_inference=True' in details
    assert f"Actor 'toy' is refused: {details}" in caplog.text
    client.close()


def test_one_message_is_made_for_all_that_ask_for_a_version():
  asked = []
  offer = toys.local_offer()
  read = offer.feed._read

  def record():
    version, leaves = read()
    return version, [_Counted(asked, x) for x in leaves]

  offer.feed._read = record
  with toys.learner(local=offer) as (server, _):
    clients = [toys.Client(server.addresses[0]) for _ in range(4)]
    for client in clients:
      client.join(1, handshake.LOCAL)
    assert asked == []
    answers = {bytes(client.report(0).body) for client in clients}
    assert len(answers) == 1
    assert len(asked) == len(toys.PARAMETERS)
    for client in clients:
      client.close()


class _Counted:
  def __init__(self, asked: list, array: np.ndarray):
    self._asked = asked
    self._array = array

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    self._asked.append(self)
    return self._array


def test_it_is_told_of_the_trainings_end():
  with toys.learner(local=toys.local_offer()) as (server, _):
    client = toys.Client(server.addresses[0])
    client.join(2, handshake.LOCAL)
    client.report(0)
    closing = toys.begin_end(server)
    assert client.report(1).kind == wire.MessageKind.END
    closing.join()
    client.close()


def test_a_learner_that_only_stops_ends_no_training():
  with toys.learner(local=toys.local_offer()) as (server, _):
    client = toys.Client(server.addresses[0])
    client.join(2, handshake.LOCAL)
    client.report(0)
    server.close(ended=False)
    assert client.refused() == (_Code.UNAVAILABLE, 'The learner stops.')
    client.close()


class _Writing:
  """A stream's context; the server closes while it writes a message."""

  def __init__(self, context, server: server_lib.ActorServer):
    self._context, self._server = context, server

  def __getattr__(self, name: str):
    return getattr(self._context, name)

  async def write(self, message: bytes) -> None:
    threading.Thread(target=self._server.close, args=(False,)).start()
    while not self._server._stopping.is_set():
      await asyncio.sleep(0)
    # The server goes on during this wait.
    await self._context.write(message)


def test_a_learner_that_stops_while_it_writes_says_so(monkeypatch):
  serve = actor_session.ActorSession.serve

  async def serve_meanwhile(self):
    self._context = _Writing(self._context, server)
    await serve(self)

  monkeypatch.setattr(actor_session.ActorSession, 'serve', serve_meanwhile)
  with toys.learner() as (server, _):
    client = toys.Client(server.addresses[0])
    client.join(2)
    assert client.refused() == (_Code.UNAVAILABLE, 'The learner stops.')
    client.close()


def test_steps_of_one_that_acts_itself_are_refused():
  with toys.learner(local=toys.local_offer()) as (server, _):
    client = toys.Client(server.addresses[0])
    client.join(2, handshake.LOCAL)
    client.say(toys.steps(client.env_id, toys.FIRST))
    assert client.refused() == (
      _Code.INVALID_ARGUMENT,
      'STEPS came instead of REPORT.',
    )
    client.close()


def test_hostile_reports_harm_nobody():
  rng = np.random.default_rng(7)
  plain = local_messages.pack_report(
    local_messages.Report(3, 9, 0.1, 5, toys.episodes(0, 1)), sequence=1
  )
  with toys.learner(local=toys.local_offer()) as (server, inference):
    good = toys.Client(server.addresses[0])
    good.join(1)
    good.step(toys.FIRST, 0)
    for round_ in range(1, 101):
      bad = toys.Client(server.addresses[0])
      bad.join(2, handshake.LOCAL)
      bad.report(0)
      message = toys.mutate(plain, rng)
      resealed = rng.integers(2) and len(message) > 31
      bad.say(toys.reseal(message) if resealed else message)
      bad.say(None)
      try:
        for _ in bad.call:
          pass
      except grpc.RpcError as e:
        assert e.code() in (_Code.INVALID_ARGUMENT, _Code.RESOURCE_EXHAUSTED)
      bad.close()
      good.step(toys.MID, round_)
    good.close()
    assert inference.error is None
    # Mutations that were accepted all the same are possible values.
    assert 0 <= server.reported.env_steps < 100 << 32
    assert np.isfinite(server.reported.store_wait)
