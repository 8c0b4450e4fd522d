"""Tests for actors/actor_side/actor.py: a group, with real environments."""

import gc
import pathlib
import threading
import types as types_lib

import grpc
import numpy as np
import pytest

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.actors import addresses, credentials, handshake
from seedrl_jax.actors.actor_side import actor
from seedrl_jax.envs import factory
from tests.actors import toys

_CONFIG = base_config.get_config().env
_CONFIG.id = 'Catch-v0'
_SPEC = factory.make_spec(_CONFIG)
_ENV = handshake.env_values(_CONFIG)


def _learner(*listening: str, **options):
  return toys.learner(*listening, spec=_SPEC, env=_ENV, **options)


def test_group_plays_until_the_training_ends():
  with _learner() as (server, inference):
    group = toys.RunningGroup(server.addresses[0])
    line = group.wait_for('Run ')
    assert line.endswith(
      f'2 environments of Catch-v0 for {server.addresses[0]}.'
    )
    while len(inference.batches) < 11:
      pass
    episodes = inference._stream.take_episodes()
    server.close(ended=True)
    group.join()
    assert group.ended is True and group.error is None
  assert {e.length for e in episodes} == {9}
  # The server has checked that batches follow each other.
  outputs = np.concatenate([b.step_type for b in inference.batches[:11]])
  assert outputs.tolist() == [toys.FIRST] * 2 + [toys.MID] * 16 + [
    *([toys.LAST] * 2),
    *([toys.FIRST] * 2),
  ]


def test_group_outlives_its_learner_and_finds_the_next(tmp_path: pathlib.Path):
  address = f'unix:{tmp_path}/a.sock'
  group = toys.RunningGroup(address)
  group.wait_for('Looking for the learner')
  runs = set()
  for ended in False, True:
    with _learner(address) as (server, _):
      runs.add(group.wait_for('Run ').split()[1])
      server.close(ended)
  group.join()
  assert group.ended is True
  assert len(runs) == 2


@pytest.mark.parametrize('there', [True, False])
def test_group_can_be_stopped(there: bool, tmp_path: pathlib.Path):
  with _learner() as (server, _):
    address = server.addresses[0] if there else f'unix:{tmp_path}/a.sock'
    group = toys.RunningGroup(address)
    group.wait_for('Run ' if there else 'Looking for')
    group.group.stop()
    group.join()
    assert group.ended is False and group.error is None


def test_group_without_a_learner_gives_up_in_the_end(tmp_path: pathlib.Path):
  group = toys.RunningGroup(f'unix:{tmp_path}/a.sock', patience=0.01)
  group.join()
  assert 'No learner at unix:' in str(group.error)


@pytest.fixture(name='left')
def left_fixture():
  """Returns the objects left of a test's calls, cycles included."""

  def calls() -> list[object]:
    kinds = (grpc.Channel, grpc.RpcError)
    return [x for x in gc.get_objects() if isinstance(x, kinds)]

  gc.collect()
  gc.disable()
  before = calls()
  yield lambda: [x for x in calls() if not any(x is y for y in before)]
  gc.enable()


@pytest.mark.parametrize('end', ['training', 'learner', 'stop', 'patience'])
def test_nothing_is_left_of_a_call(end: str, left, tmp_path: pathlib.Path):
  """Otherwise a program could hang at exit, in gRPC's clean-up."""
  address = f'unix:{tmp_path}/a.sock'
  with _learner(address) as (server, _):
    group = toys.RunningGroup(
      address, patience=0.1 if end == 'patience' else 600.0
    )
    group.wait_for('Run ')
    # The check does find a call while there is one.
    assert left()
    if end == 'stop':
      group.group.stop()
    else:
      server.close(ended=end == 'training')
  if end == 'learner':
    group.wait_for('Looking for the learner')
    group.group.stop()
  group.join()
  assert group.ended is (None if end == 'patience' else end == 'training')
  assert isinstance(group.error, actor.ActorError) is (end == 'patience')
  assert left() == []


def test_nothing_is_left_of_a_call_that_is_refused(
  left, tmp_path: pathlib.Path
):
  address = f'unix:{tmp_path}/a.sock'
  with _learner(address, security=toys.OPEN._replace(token='right')):
    group = toys.RunningGroup(address)
    group.join()
    assert isinstance(group.error, actor.ActorError)
    assert left() == []


class _NoTime(threading.Event):
  """Records the waits; is set after some of them."""

  def __init__(self):
    super().__init__()
    self.waits: list[float] = []

  def wait(self, timeout: float | None = None) -> bool:
    assert timeout is not None
    self.waits.append(timeout)
    if len(self.waits) == 9:
      self.set()
    return self.is_set()


def test_waits_between_attempts_grow(tmp_path: pathlib.Path):
  target = addresses.parse('--learner', f'unix:{tmp_path}/a.sock')
  group = actor.EnvGroup(
    actor.GroupOptions(target, toys.OPEN, 2), lambda _: None
  )
  group._stop = stop = _NoTime()
  assert group.run() is False
  longest = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
  # Shortened at random, so that actors do not all come back at once.
  for wait, most in zip(stop.waits, longest, strict=True):
    assert most / 2 <= wait <= most


@pytest.mark.parametrize('options', [{}, {'patience': 0.0}])
def test_group_looks_for_its_first_learner_for_ten_minutes(
  options: dict[str, float],
  tmp_path: pathlib.Path,
  monkeypatch: pytest.MonkeyPatch,
):
  target = addresses.parse('--learner', f'unix:{tmp_path}/a.sock')
  waiting = _NoTime()
  clock = types_lib.SimpleNamespace(monotonic=lambda: 80 * len(waiting.waits))
  monkeypatch.setattr(actor, 'time', clock)
  wanted = actor.GroupOptions(target, toys.OPEN, 2, **options)
  group = actor.EnvGroup(wanted, lambda _: None)
  group._stop = waiting
  if options:
    # Looks for ever.
    assert group.run() is False
    return
  with pytest.raises(actor.ActorError, match=f'No learner at {target.text} fo'):
    group.run()
  assert clock.monotonic() == 640


def test_group_looks_for_a_lost_learner_for_as_long(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
  clock = types_lib.SimpleNamespace(monotonic=lambda: 0)
  monkeypatch.setattr(actor, 'time', clock)
  address = f'unix:{tmp_path}/a.sock'
  group = toys.RunningGroup(address)
  with _learner(address):
    group.wait_for('Run ')
    clock.monotonic = lambda: 10_000
  group.wait_for('Looking for the learner')
  clock.monotonic = lambda: 10_600
  group.join()
  assert 'if its training has not ended, start the actor' in str(group.error)


def test_other_environments_end_the_group_and_are_told_of(
  caplog: pytest.LogCaptureFixture,
):
  caplog.set_level('INFO')
  with toys.learner(
    spec=_SPEC._replace(action=types.discrete(4)), env=_ENV
  ) as (
    server,
    _,
  ):
    group = toys.RunningGroup(server.addresses[0], name='me')
    group.join()
    sentence = (
      'me cannot serve this learner: Catch-v0 has another action at the '
      f'actor than at the learner: {types.discrete(3)} instead of '
      f'{types.discrete(4)}; install the same environments on both sides.'
    )
    assert str(group.error) == sentence
  assert sentence in caplog.text


def test_an_unknown_environment_ends_the_group():
  env = _ENV | {'id': 'Catched-v0'}
  with toys.learner(spec=_SPEC, env=env) as (server, _):
    group = toys.RunningGroup(server.addresses[0])
    group.join()
    assert 'EnvPool has no such environment' in str(group.error)


def _no_player(*_: object) -> None:
  raise AssertionError('An agent that is not allowed would be loaded here.')


@pytest.mark.parametrize(
  'factory, make_local_actor, wanted',
  [('os:mkdir', None, 'os:mkdir'), ('', _no_player, 'os.path:make_agent')],
)
def test_a_learner_cannot_run_what_it_likes(
  factory: str,
  make_local_actor: actor.MakeLocalActor | None,
  wanted: str,
  tmp_path: pathlib.Path,
  caplog: pytest.LogCaptureFixture,
):
  caplog.set_level('INFO')
  kwargs = {'path': str(tmp_path / 'made')} if factory else {}
  env = _ENV | {'factory': factory, 'factory_kwargs': kwargs}
  offer = toys.local_offer(agent='os.path')
  with toys.learner(spec=_SPEC, env=env, local=offer) as (server, _):
    group = toys.RunningGroup(server.addresses[0], make_local_actor)
    group.join()
  sentence = f'if you trust it, add --allow_factory={wanted}.'
  assert sentence in str(group.error)
  # The learner logs it, too.
  assert sentence in caplog.text
  assert list(tmp_path.iterdir()) == []


def test_a_group_that_is_too_large_ends():
  with _learner(batch_size=1) as (server, _):
    group = toys.RunningGroup(server.addresses[0])
    group.join()
    assert 'A group of 2 environments is too large' in str(group.error)


def test_a_full_learner_is_asked_again():
  with _learner(num_envs=2, batch_size=2) as (server, _):
    first = toys.RunningGroup(server.addresses[0])
    first.wait_for('Run ')
    second = toys.RunningGroup(server.addresses[0])
    second.wait_for('There is no room for 2 more environments')
    first.group.stop()
    second.wait_for('Run ')
    second.group.stop()
    first.join()
    second.join()


def test_wrong_token_and_no_tls_end_the_group(
  certificate: tuple[pathlib.Path, pathlib.Path],
):
  chain, key = (file.read_bytes() for file in certificate)
  security = credentials.Security(chain, key, 'secret')
  with _learner('localhost:0', security=security) as (server, _):
    address = server.addresses[0]
    right = credentials.Security(certificate=chain, token='secret')
    group = toys.RunningGroup(address, security=right._replace(token='guess'))
    group.join()
    assert 'The token is not the one of this learner' in str(group.error)
    # An actor that does not trust the certificate sends no token.
    group = toys.RunningGroup(address, security=toys.OPEN, patience=0.01)
    group.join()
    assert 'give --tls_roots' in str(group.error)
    group = toys.RunningGroup(address, security=right)
    group.wait_for('Run ')
    server.close(ended=True)
    group.join()
    assert group.ended is True
