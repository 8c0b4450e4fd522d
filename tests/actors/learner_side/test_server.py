"""Tests for actors/learner_side/server.py."""

import pathlib
import threading
from unittest import mock

import chex
import grpc
import numpy as np
import pytest

from seedrl_jax.actors import handshake, local_messages
from seedrl_jax.actors.learner_side import server as server_lib
from seedrl_jax.net import credentials
from seedrl_jax.runtime import nest
from tests.actors import toys
from tests.patience import wait_until

_Code = grpc.StatusCode
_STOPS = (_Code.UNAVAILABLE, 'The learner stops.')
_HELLO = handshake.pack_hello(handshake.Hello(2, 'toy'))


def _unix(folder: pathlib.Path) -> str:
  return f'unix:{folder}/a.sock'


def test_steps_go_to_inference_and_actions_come_back(tmp_path: pathlib.Path):
  with toys.learner(_unix(tmp_path), '127.0.0.1:0') as (server, inference):
    assert server.addresses[0] == _unix(tmp_path)
    a, b = (toys.Client(address) for address in server.addresses)
    runs = {a.join(2).run_id, b.join(3).run_id}
    assert len(runs) == 2
    assert server.num_connected == 5
    for value, kind in enumerate([toys.FIRST, toys.MID, toys.LAST]):
      for client in a, b:
        action = client.step(kind, value)
        expected = toys.expected_action(client.env_id, value)
        assert action.tolist() == expected
    chex.assert_trees_all_equal(
      inference.batches[0], toys.output(a.env_id, toys.FIRST)
    )
    a.close()
    b.close()
  assert not (tmp_path / 'a.sock').exists()


def test_reports_are_counted_and_answered_with_parameters():
  specs = tuple(toys.PARAMETERS.values())
  offer = toys.local_offer()
  with toys.learner(local=offer) as (server, inference):
    client = toys.Client(server.addresses[0])
    local = client.join(3, acts_itself=True).local
    assert local is not None
    assert local.global_env_id == [100, 101, 102]
    assert local.replay_address == 'localhost:8000'
    newer = local_messages.unpack_parameters(
      client.report(local_messages.Work(4)), specs
    )
    assert newer is not None and newer[0] == 7
    assert [x.shape for x in newer[1]] == [(), (2, 3)]
    work = local_messages.Work(3, 0.5, 9)
    nothing = client.report(work, toys.episodes(1), version=7)
    assert local_messages.unpack_parameters(nothing, specs) is None
    assert server.reported == local_messages.Work(7, 0.5, 9)
    assert [e.env_id for e in server.streams[0].take_episodes()] == [1]
    assert server.num_connected == 3
    assert server.metrics()['actors/stream_bytes'] > 2 * 7 * 4
    client.close()
  # Inference was not involved.
  assert inference.batches == []


@pytest.mark.parametrize(
  'messages, sentence',
  [
    ([b'junk'], 'no whole header'),
    ([toys.steps([0], toys.FIRST)], 'holds no JSON object'),
    ([_HELLO, _HELLO], 'bytes too many'),
    ([_HELLO, toys.steps([6], toys.FIRST)], 'STEPS of 1'),
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
    assert len(good.step(toys.FIRST)) == 3
    good.close()
    bad.close()


def test_a_message_too_large_ends_its_stream():
  with toys.learner() as (server, _):
    client = toys.Client(server.addresses[0])
    client.say(bytes(2 << 20))
    # Sometimes gRPC ends it without its reason.
    codes = _Code.RESOURCE_EXHAUSTED, _Code.CANCELLED
    assert client.refused()[0] in codes
    client.close()


@pytest.mark.parametrize('acts_itself', [False, True])
def test_hostile_messages_harm_nobody(acts_itself: bool):
  """Thousands, in every state of a stream, do not disturb a good actor."""
  rng = np.random.default_rng(5)
  work = local_messages.Work(9, 0.1, 5)
  report = local_messages.Report(3, work, toys.episodes(0, 1))
  with toys.learner(num_envs=16, local=toys.local_offer()) as (
    server,
    behind,
  ):
    good = toys.Client(server.addresses[0])
    good.join(1)
    good.step(toys.FIRST)
    for _ in range(150):
      bad = toys.Client(server.addresses[0])
      plain = _HELLO
      if rng.integers(3):
        bad.join(2, acts_itself)
        plain = local_messages.pack_report(report)
        if not acts_itself:
          plain = toys.steps(bad.env_id, toys.FIRST)
      for _ in range(10):
        bad.say(toys.mutate(plain, rng))
      bad.say(None)
      try:
        for _ in bad.call:
          pass
      except grpc.RpcError as e:
        assert e.code() in (_Code.INVALID_ARGUMENT, _Code.RESOURCE_EXHAUSTED)
      bad.close()
      good.step(toys.MID)
    good.close()
    assert behind.error is None
    for batch in behind.batches:
      for leaf in nest.flatten(batch.observation):
        assert leaf.dtype.kind != 'f' or np.isfinite(leaf).all()
    assert np.isfinite(server.reported.store_wait)


@pytest.mark.parametrize('joined', [True, False])
def test_a_silent_actor_is_given_up(joined: bool):
  with toys.learner(timeout=500.0) as (server, _):
    clock = toys.Clock(server)
    client = toys.Client(server.addresses[0])
    seconds = 500.0 if joined else server_lib._HELLO_SECONDS
    if joined:
      client.join(2)
      client.step(toys.FIRST)
    clock.advance_until_ended(client, seconds + 1.0)
    code, details = client.refused()
    assert code == _Code.DEADLINE_EXCEEDED
    assert details == f'Nothing came for {seconds:g} s.'
    client.close()


@pytest.mark.parametrize('ended', [True, False])
@pytest.mark.parametrize('state', ['stepping', 'waiting', 'reporting'])
def test_actors_learn_whether_the_training_ended(ended: bool, state: str):
  with toys.learner(local=toys.local_offer()) as (server, inference):
    client = toys.Client(server.addresses[0])
    if state == 'reporting':
      client.join(2, acts_itself=True)
      client.report()
    else:
      client.join(2)
      client.step(toys.FIRST)
    if state == 'waiting':
      # Inference stops, so these steps wait for their actions.
      inference._stream.close()
      inference.join()
      client.say(toys.steps(client.env_id, toys.MID))
    server.close(ended)
    if state == 'stepping':
      # Its environments took longer than the server to end.
      client.say(toys.steps(client.env_id, toys.MID))
    if ended:
      assert list(client.call) == []
    else:
      assert client.refused() == _STOPS
    client.close()


def test_who_was_lost_hears_of_the_end_on_coming_back(
  monkeypatch: pytest.MonkeyPatch,
):
  monkeypatch.setattr(server_lib, '_BACK_SECONDS', 600.0)
  monkeypatch.setattr(server_lib, '_LATELY_SECONDS', 600.0)
  with toys.learner() as (server, _):
    clock = toys.Clock(server)
    client = toys.Client(server.addresses[0])
    client.join(2)
    client.step(toys.FIRST)
    # What gRPC reports of an actor that was killed.
    client.call.cancel()
    wait_until(lambda: server._last_end >= 0)
    closing = threading.Thread(target=server.close, args=(True,))
    closing.start()
    wait_until(lambda: server.is_closed)
    client = toys.Client(server.addresses[0])
    client.say(_HELLO)
    assert list(client.call) == []

    def has_closed() -> bool:
      clock.advance(601.0)
      return not closing.is_alive()

    wait_until(has_closed)
    client.close()


def test_a_server_that_fails_tells_inference():
  session = mock.Mock()
  session.close.side_effect = OSError('The loop is broken.')
  # `learner` itself raises how inference ended.
  with (
    pytest.raises(AssertionError, match='The loop is broken'),
    toys.learner() as (server, inference),
  ):
    server._sessions.add(session)
    server.loop.call_soon_threadsafe(server._stopping.set)
    inference.join()


def test_an_address_in_use_is_refused_and_leaves_no_socket(
  tmp_path: pathlib.Path,
):
  with (
    toys.learner() as (server, _),
    pytest.raises(ValueError, match='cannot listen there'),
    toys.learner(_unix(tmp_path), server.addresses[0]),
  ):
    pass
  assert list(tmp_path.iterdir()) == []


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
      assert len(client.step(toys.FIRST)) == 1
      client.close()
    client = toys.Client(server.addresses[0], actor._replace(certificate=b''))
    client.say(_HELLO)
    assert client.refused()[0] == _Code.UNAVAILABLE
    client.close()
