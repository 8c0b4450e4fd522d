"""Tests for actors/learner_side/server.py, over unix sockets and loopback."""

import asyncio
import os
import pathlib
import socket
import threading
from collections.abc import Callable

import chex
import grpc
import numpy as np
import pytest

from seedrl_jax.actors import credentials, handshake, wire
from seedrl_jax.actors.learner_side import actor_session, server_state
from seedrl_jax.actors.learner_side import server as server_lib
from seedrl_jax.runtime import nest
from tests.actors import toys

_Code = grpc.StatusCode


def _unix(folder: pathlib.Path) -> str:
  return f'unix:{folder}/a.sock'


def test_steps_go_to_inference_and_actions_come_back(tmp_path: pathlib.Path):
  with toys.learner(_unix(tmp_path), '127.0.0.1:0') as (server, inference):
    assert server.addresses[0] == _unix(tmp_path)
    a, b = (toys.Client(address) for address in server.addresses)
    runs = {a.join(2).run_id, b.join(3).run_id}
    assert len(runs) == 2
    assert sorted([*a.env_id, *b.env_id]) == [0, 1, 2, 3, 4]
    assert server.num_connected == 5
    for sequence, kind in enumerate([toys.FIRST, toys.MID, toys.LAST]):
      for client in a, b:
        action = client.step(kind, sequence)
        expected = toys.expected_action(client.env_id, sequence)
        assert action.tolist() == expected
    chex.assert_trees_all_equal(
      inference.batches[0], toys.output(a.env_id, toys.FIRST)
    )
    a.close()
    b.close()
  assert not (tmp_path / 'a.sock').exists()


def test_who_leaves_is_dropped_and_its_slots_are_used_again():
  with toys.learner(num_envs=2, batch_size=2) as (server, inference):
    first = toys.Client(server.addresses[0])
    old = first.join(2)
    first.step(toys.FIRST, 0)
    first.close()
    # There is no room before the learner notices that the actor left.
    client, new = _join_when_there_is_room(server.addresses[0], 2)
    assert new.run_id != old.run_id and new.seed != old.seed
    assert new.env_id.tolist() == [0, 1]
    client.step(toys.FIRST, 0)
    assert inference.dropped == [[], [0, 1]]
    client.close()


def _join_when_there_is_room(
  address: str, num_envs: int
) -> tuple[toys.Client, handshake.Welcome]:
  while True:
    client = toys.Client(address)
    try:
      return client, client.join(num_envs)
    except grpc.RpcError as e:
      assert e.code() == _Code.RESOURCE_EXHAUSTED
      client.close()


@pytest.mark.parametrize(
  'num_envs, code, sentence',
  [
    (5, _Code.FAILED_PRECONDITION, 'A group of 5 environments is too large'),
    (4, _Code.RESOURCE_EXHAUSTED, 'There is no room for 4 more'),
  ],
)
def test_groups_that_do_not_fit_are_refused(
  num_envs: int, code: grpc.StatusCode, sentence: str
):
  with toys.learner(num_envs=4) as (server, _):
    there = toys.Client(server.addresses[0])
    there.join(1)
    client = toys.Client(server.addresses[0])
    client.say(handshake.pack_hello(handshake.Hello(num_envs, 'toy')))
    assert client.refused()[0] == code
    assert sentence in client.call.details()
    client.close()
    assert there.step(toys.FIRST, 0).tolist() == [0]
    there.close()


_HELLO = handshake.pack_hello(handshake.Hello(2, 'toy'))


@pytest.mark.parametrize(
  'messages, sentence',
  [
    ([b'junk'], 'no whole header'),
    ([_HELLO[:4] + b'\x09' + _HELLO[5:]], 'of version 9'),
    ([toys.steps([0], toys.FIRST)], 'STEPS came instead of HELLO'),
    ([_HELLO, _HELLO], 'HELLO came instead of STEPS'),
    ([_HELLO, toys.steps([6], toys.FIRST)], 'An env_id'),
    ([_HELLO, toys.steps([0], toys.MID)], 'A FIRST step'),
    ([_HELLO, toys.steps([0], toys.FIRST, 4)], 'Message 4 came'),
  ],
)
def test_a_wrong_message_ends_its_stream_with_a_reason(
  messages: list[bytes], sentence: str
):
  with toys.learner() as (server, _):
    good, bad = (toys.Client(server.addresses[0]) for _ in range(2))
    bad.say(messages[0])
    if messages[1:]:
      bad.hear()
      bad.say(messages[1])
    code, details = bad.refused()
    assert (code, sentence in details) == (_Code.INVALID_ARGUMENT, True)
    good.join(3)
    assert len(good.step(toys.FIRST, 0)) == 3
    good.close()
    bad.close()


def test_a_message_too_large_ends_its_stream():
  with toys.learner() as (server, _):
    client = toys.Client(server.addresses[0])
    client.say(bytes(1 << 20))
    # Sometimes gRPC ends it without its reason.
    codes = _Code.RESOURCE_EXHAUSTED, _Code.CANCELLED
    assert client.refused()[0] in codes
    client.close()


def test_hostile_messages_harm_nobody():
  """Thousands, in every state of a stream, do not disturb a good actor."""
  rng = np.random.default_rng(5)
  with toys.learner(num_envs=16) as (server, inference):
    good = toys.Client(server.addresses[0])
    good.join(1)
    good.step(toys.FIRST, 0)
    for round_ in range(1, 301):
      bad = toys.Client(server.addresses[0])
      start = rng.integers(3)
      if start:
        bad.join(2)
      if start == 2:
        bad.step(toys.FIRST, 0)
      plain = _HELLO if not start else toys.steps(bad.env_id, 1, start - 1)
      for _ in range(10):
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
    for batch in inference.batches:
      for leaf in nest.flatten(batch.observation):
        assert leaf.dtype.kind != 'f' or np.isfinite(leaf).all()


def test_bytes_that_are_no_grpc_harm_nobody():
  rng = np.random.default_rng(6)
  with toys.learner() as (server, _):
    port = int(server.addresses[0].rpartition(':')[2])
    for _ in range(50):
      with socket.create_connection(('127.0.0.1', port)) as connection:
        connection.sendall(rng.bytes(1000))
    client = toys.Client(server.addresses[0])
    client.join(2)
    assert len(client.step(toys.FIRST, 0)) == 2
    client.close()


def test_a_silent_actor_is_given_up():
  with toys.learner(timeout=500.0) as (server, _):
    clock = toys.Clock(server)
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.step(toys.FIRST, 0)
    clock.advance_until_ended(client, 501.0)
    code, details = client.refused()
    assert code == _Code.DEADLINE_EXCEEDED
    assert details == 'Nothing came for 500 s.'
    client.close()


def test_who_says_nothing_at_all_is_given_up_soon():
  with toys.learner() as (server, _):
    clock = toys.Clock(server)
    client = toys.Client(server.addresses[0])
    clock.advance_until_ended(client, actor_session._HELLO_SECONDS + 1)
    assert client.refused() == (
      _Code.DEADLINE_EXCEEDED,
      'No first message came in time.',
    )
    client.close()


async def _play_beside_silence(address: str, play: Callable[[], None]) -> None:
  """Runs `play` in a thread while the most streams allowed are silent."""
  count = 3 * server_lib._EXTRA_STREAMS
  async with grpc.aio.insecure_channel(address) as channel:
    calls = [channel.stream_stream(toys.METHOD)() for _ in range(count)]
    # Guards against silent streams that are left alone.
    async with asyncio.timeout(actor_session._HELLO_SECONDS / 2):
      codes = asyncio.as_completed([call.code() for call in calls])
      for _ in range(count - actor_session.MAX_SILENT):
        await next(codes)
    await asyncio.to_thread(play)


def test_silent_streams_take_no_place_of_real_ones():
  with toys.learner(num_envs=2, batch_size=2) as (server, _):

    def play() -> None:
      client = toys.Client(server.addresses[0])
      client.join(2)
      assert len(client.step(toys.FIRST, 0)) == 2
      client.close()

    asyncio.run(_play_beside_silence(server.addresses[0], play))


def test_a_learner_that_is_slow_gives_nobody_up():
  has_steps, stream_may_answer = threading.Event(), threading.Event()
  with toys.learner(timeout=500.0) as (server, inference):
    clock = toys.Clock(server)
    recv = inference._stream.recv

    def slow_recv():
      batch = recv()
      # The real `recv` may still take the first.
      if inference.batches:
        has_steps.set()
        stream_may_answer.wait()
      return batch

    inference._stream.recv = slow_recv
    first = toys.Client(server.addresses[0])
    first.join(1)
    first.step(toys.FIRST, 0)
    first.close()
    client = toys.Client(server.addresses[0])
    client.join(1)
    client.say(toys.steps(client.env_id, toys.FIRST))
    has_steps.wait()
    silent = toys.Client(server.addresses[0])
    silent.join(1)
    # By now the other one would have been dropped, too.
    clock.advance_until_ended(silent, 501.0)
    assert silent.refused()[0] == _Code.DEADLINE_EXCEEDED
    stream_may_answer.set()
    assert client.hear().kind == wire.MessageKind.ACTIONS
    client.close()
    silent.close()


def test_refusal_of_an_actor_is_logged(caplog: pytest.LogCaptureFixture):
  caplog.set_level('INFO')
  with toys.learner() as (server, _):
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.say(
      wire.pack_json(wire.MessageKind.REFUSAL, {'reason': 'Other Toy.'})
    )
    assert list(client.call) == []
    client.close()
  assert "An actor refuses: 'Other Toy.'" in caplog.text


@pytest.mark.parametrize('state', ['stepping', 'waiting'])
def test_actors_are_told_of_the_trainings_end(state: str):
  with toys.learner() as (server, inference):
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.step(toys.FIRST, 0)
    if state == 'waiting':
      # Inference stops, so these steps wait for their actions.
      inference._stream.close()
      inference.join()
      client.say(toys.steps(client.env_id, toys.MID, 1))
    closing = toys.begin_end(server)
    if state == 'stepping':
      client.say(toys.steps(client.env_id, toys.MID, 1))
    assert client.hear().kind == wire.MessageKind.END
    assert list(client.call) == []
    closing.join()
    client.close()


def test_a_slow_actor_hears_of_the_trainings_end(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(server_lib, '_END_SECONDS', 3.0)
  with toys.learner(timeout=500.0) as (server, _):
    clock = toys.Clock(server)
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.step(toys.FIRST, 0)
    goodbye = server._say_goodbye
    waits, over = threading.Event(), threading.Event()

    async def say_goodbye() -> None:
      server._state.loop.call_soon(waits.set)
      await goodbye()
      over.set()

    server._say_goodbye = say_goodbye
    closing = toys.begin_end(server)
    waits.wait()
    # Its next step takes longer than a goodbye, but less than the time-out.
    clock.advance(100.0)
    for _ in range(10):
      turn = asyncio.sleep(0)
      asyncio.run_coroutine_threadsafe(turn, server._state.loop).result()
    assert not over.is_set()
    client.say(toys.steps(client.env_id, toys.MID, 1))
    assert client.hear().kind == wire.MessageKind.END
    closing.join()
    client.close()


def test_who_was_lost_hears_of_the_end_on_coming_back(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(server_lib, '_BACK_SECONDS', 600.0)
  monkeypatch.setattr(server_state, '_EXPECTED_SECONDS', 600.0)
  with toys.learner() as (server, _):
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.step(toys.FIRST, 0)
    # What gRPC reports of an actor that was killed.
    client.call.cancel()
    while not server._state.disconnected._since:
      os.sched_yield()
    closing = toys.begin_end(server)
    client = toys.Client(server.addresses[0])
    client.say(_HELLO)
    assert client.hear().kind == wire.MessageKind.END
    closing.join()
    client.close()


@pytest.mark.parametrize('waits', [False, True])
def test_a_learner_that_only_stops_ends_no_training(waits: bool):
  with toys.learner() as (server, inference):
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.step(toys.FIRST, 0)
    if waits:
      inference._stream.close()
      inference.join()
      client.say(toys.steps(client.env_id, toys.MID, 1))
    server.close(ended=False)
    assert client.refused() == (_Code.UNAVAILABLE, 'The learner stops.')
    client.close()


def test_a_server_that_fails_tells_inference():
  async def fail() -> None:
    raise OSError('The loop is broken.')

  # `learner` itself raises how inference ended.
  with (
    pytest.raises(AssertionError, match='The loop is broken'),
    toys.learner() as (server, inference),
  ):
    server._say_goodbye = fail
    server._state.loop.call_soon_threadsafe(server._wake)
    inference.join()


def test_an_address_in_use_is_refused():
  with (
    toys.learner() as (server, _),
    pytest.raises(ValueError, match='cannot listen there'),
    toys.learner(server.addresses[0]),
  ):
    pass


def test_token_is_wanted_before_anything_else(tmp_path: pathlib.Path):
  secret = credentials.Security(token='secret')
  with toys.learner(_unix(tmp_path), security=secret) as (server, _):
    for token in '', 'other':
      client = toys.Client(server.addresses[0], secret._replace(token=token))
      client.say(b'junk')
      assert client.refused() == (
        _Code.UNAUTHENTICATED,
        'The token is not the one of this learner.',
      )
      client.close()
    client = toys.Client(server.addresses[0], secret)
    client.join(1)
    client.close()


def test_tls_is_wanted_where_there_is_a_certificate(
  certificate: tuple[pathlib.Path, pathlib.Path], tmp_path: pathlib.Path
):
  chain, key = (file.read_bytes() for file in certificate)
  security = credentials.Security(chain, key, 'secret')
  with toys.learner('127.0.0.1:0', _unix(tmp_path), security=security) as (
    server,
    _,
  ):
    # No TLS on the unix socket, which needs none.
    actor = credentials.Security(certificate=chain, token='secret')
    for address in server.addresses:
      client = toys.Client(address, actor)
      client.join(1)
      assert len(client.step(toys.FIRST, 0)) == 1
      client.close()
    client = toys.Client(server.addresses[0], actor._replace(certificate=b''))
    client.say(_HELLO)
    assert client.refused()[0] == _Code.UNAVAILABLE
    client.close()


def test_a_certificate_that_is_none_is_refused():
  security = credentials.Security(b'no', b'pem', 'secret')
  with (
    pytest.raises(ValueError, match='cannot listen there'),
    toys.learner(security=security),
  ):
    pass


def test_an_environment_that_cannot_be_told_of_is_refused():
  with (
    pytest.raises(ValueError, match='WELCOME cannot be sent'),
    toys.learner(env={'options': object()}),
  ):
    pass
