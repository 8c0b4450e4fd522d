"""Tests for actors/actor_side/actor.py: a group, with real environments."""

import gc
import pathlib
import queue
import threading
import types as types_lib
from collections.abc import Sequence

import grpc
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages
from seedrl_jax.actors.actor_side import actor
from seedrl_jax.configs import base as base_config
from seedrl_jax.envs import base, env_thread, factory, trust
from seedrl_jax.net import addresses
from tests import runs
from tests.actors import toys
from tests.patience import wait_until

_CONFIG = base_config.get_config().env
_CONFIG.id = 'Catch-v0'
_SPEC = factory.make_spec(_CONFIG)
_ENV = _CONFIG.to_dict()


def _learner(*listening: str, **options):
  values = {'spec': _SPEC, 'env': _ENV, 'local': toys.local_offer()}
  return toys.learner(*listening, **values | options)


def test_group_plays_until_the_training_ends():
  with _learner() as (server, inference):
    group = toys.RunningGroup(server.addresses[0])
    line = group.wait_for('Run ')
    assert line.endswith(
      f'2 environments of Catch-v0 for {server.addresses[0]}.'
    )
    wait_until(lambda: len(inference.batches) >= 11)
    episodes = inference._stream.take_episodes()
    server.close(ended=True)
    group.join()
    assert group.ended is True and group.error is None
  assert {e.length for e in episodes} == {9}
  # The server has checked that batches follow each other.
  outputs = np.concatenate([b.step_type for b in inference.batches[:11]])
  kinds = [toys.FIRST, *[toys.MID] * 8, toys.LAST, toys.FIRST]
  assert outputs.tolist() == np.repeat(kinds, 2).tolist()


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


@pytest.mark.parametrize('end', ['training', 'learner', 'stop', 'refusal'])
def test_nothing_is_left_of_a_call(end: str, left, tmp_path: pathlib.Path):
  """Otherwise a program could hang at exit, in gRPC's clean-up."""
  address = f'unix:{tmp_path}/a.sock'
  token = 'right' if end == 'refusal' else ''
  with _learner(address, security=toys.OPEN._replace(token=token)) as (
    server,
    _,
  ):
    group = toys.RunningGroup(address)
    if end != 'refusal':
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
  assert group.ended is (None if end == 'refusal' else end == 'training')
  assert isinstance(group.error, actor.ActorError) is (end == 'refusal')
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


def test_group_looks_for_a_learner_for_ever_but_less_and_less_often(
  tmp_path: pathlib.Path,
):
  target = addresses.parse('--learner', f'unix:{tmp_path}/a.sock')
  options = actor.GroupOptions(target, toys.OPEN, 2, patience=0.0)
  group = actor.EnvGroup(options, lambda _: None)
  group._stop = waiting = _NoTime()
  assert group.run() is False
  longest = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
  # Shortened at random, so that actors do not all come back at once.
  for wait, most in zip(waiting.waits, longest, strict=True):
    assert most / 2 <= wait <= most


def test_group_looks_for_a_lost_learner_for_ten_minutes(
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


def _unwelcome(*args: object) -> None:
  raise AssertionError('An agent that is not allowed would be loaded here.')


@pytest.mark.parametrize(
  'options, make_local_actor, sentence',
  [
    (
      {'spec': _SPEC._replace(action=types.discrete(4))},
      None,
      'Catch-v0 has another action at the actor than at the learner: '
      f'{types.discrete(3)} instead of {types.discrete(4)}; install the same '
      'environments on both sides.',
    ),
    (
      {'env': _ENV | {'id': 'Catched-v0'}},
      None,
      'EnvPool has no such environment',
    ),
    (
      {'env': _ENV | {'factory': 'os:mkdir', 'factory_kwargs': {}}},
      None,
      'if you trust it, add --allow_factory=os:mkdir.',
    ),
    (
      {'local': toys.local_offer(agent='os.path')},
      _unwelcome,
      'if you trust it, add --allow_factory=os.path:make_agent.',
    ),
    ({'local': None}, _unwelcome, '--config.actors.local_inference=True'),
    (
      {'env': {}},
      None,
      '--config.env.factory is missing; start from a whole configuration.',
    ),
    ({'env': _ENV | {'frame_skip': 10**9}}, None, 'give 1 to 10,000'),
    ({'env': _ENV | {'options': 5}}, None, '--config.env.options=5: give {'),
  ],
)
def test_a_sentence_says_what_does_not_fit(
  options: dict,
  make_local_actor: actor.MakeLocalActor | None,
  sentence: str,
):
  with _learner(**options) as (server, _):
    group = toys.RunningGroup(server.addresses[0], make_local_actor)
    group.join()
  assert isinstance(group.error, actor.ActorError)
  assert sentence in str(group.error)


# -- groups that act themselves ------------------------------------------------


class _ToyActor:
  """Reports one step each time; fails if it should after its first version."""

  parameters = tuple(toys.PARAMETERS.values())

  def __init__(self, welcome: handshake.Welcome, error: Exception | None):
    self.welcome = welcome
    self.taken: queue.SimpleQueue[int] = queue.SimpleQueue()
    self.closed = False
    self._version = types.NO_VERSION
    self._error = error

  def start(self) -> None:
    assert not self.closed

  def report(self) -> local_messages.Report:
    if self._error is not None and self._version != types.NO_VERSION:
      raise self._error
    return local_messages.Report(self._version, local_messages.Work(1))

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    assert [x.shape for x in leaves] == [(), (2, 3)]
    assert all((x == version).all() for x in leaves)
    self._version = version
    self.taken.put(version)

  def wait(self) -> None:
    pass

  def close(self) -> None:
    self.closed = True


class _LocalGroup(toys.RunningGroup):
  """A group that acts itself; `local_actors` are its actors."""

  def __init__(self, address: str, error: Exception | None = None):
    self.local_actors: queue.SimpleQueue[_ToyActor] = queue.SimpleQueue()
    self._raises = error
    super().__init__(address, self._make)

  def _make(self, welcome: handshake.Welcome, stream: object) -> _ToyActor:
    local_actor = _ToyActor(welcome, self._raises)
    self.local_actors.put(local_actor)
    return local_actor


def test_group_whose_environment_hangs_names_it(monkeypatch):
  monkeypatch.setattr(env_thread, 'END_SECONDS', 0.1)
  config = base_config.get_config().env
  config.factory = 'tests.runs:pixels'
  config.factory_kwargs.update(bad_after=3, failure='hang')
  values = {
    'spec': factory.make_spec(config),
    'env': config.to_dict(),
  }
  runs.HANGS.clear()
  with _learner(**values) as (server, _):
    allowed = trust.flags_needed({'env': values['env']})
    group = toys.RunningGroup(server.addresses[0], allowed=allowed)
    assert runs.HANGS.wait(300.0)
    group.group.stop()
    group.join()
  assert isinstance(group.error, base.EnvironmentFailed)
  assert str(group.error).startswith(
    'Environment 0 of tests.runs:pixels did not r'
  )


@pytest.mark.parametrize('ended', [True, False])
def test_a_local_group_follows_until_it_ends(ended: bool):
  versions = [7]
  offer = toys.local_offer(version=lambda: versions[0])
  with _learner(local=offer) as (server, inference):
    group = _LocalGroup(server.addresses[0])
    local_actor = group.local_actors.get()
    assert local_actor.taken.get() == 7
    versions[0] = 9
    assert local_actor.taken.get() == 9
    if ended:
      server.close(ended=True)
    else:
      group.group.stop()
    group.join()
  assert group.ended is ended and local_actor.closed
  assert server.reported.env_steps > 1
  assert inference.batches == []


def test_a_failure_of_the_local_actor_is_the_groups():
  with _learner() as (server, _):
    group = _LocalGroup(server.addresses[0], OSError('broken'))
    group.join()
    assert group.local_actors.get().closed
  assert isinstance(group.error, OSError)
