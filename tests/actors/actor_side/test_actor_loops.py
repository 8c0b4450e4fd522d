"""Tests for actors/actor_side/actor.py: a group that acts itself."""

import queue
from collections.abc import Sequence

import numpy as np
import pytest

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.actors import handshake, local_messages
from seedrl_jax.actors.actor_side.connection import (
  ActorError,
  IncompatibleLearner,
  PeerLost,
)
from seedrl_jax.envs import factory
from tests.actors import toys

_CONFIG = base_config.get_config().env
_CONFIG.id = 'Catch-v0'
_SPEC = factory.make_spec(_CONFIG)
_ENV = handshake.env_values(_CONFIG)


class _ToyActor:
  """Reports one step each time; ends as configured."""

  parameters = tuple(toys.PARAMETERS.values())

  def __init__(self, welcome: handshake.Welcome, error: Exception | None):
    self.welcome = welcome
    self.taken: queue.SimpleQueue[int] = queue.SimpleQueue()
    self.waits = 0
    self.closed = False
    self._version = types.NO_VERSION
    self._error = error

  def start(self) -> None:
    assert not self.closed

  def report(self) -> local_messages.Report:
    if self._error is not None and self._version != types.NO_VERSION:
      raise self._error
    return local_messages.Report(
      self._version, 1, 0.0, 0, local_messages.NO_EPISODES
    )

  def take(self, version: int, leaves: Sequence[np.ndarray]) -> None:
    assert [x.shape for x in leaves] == [(), (2, 3)]
    assert all((x == version).all() for x in leaves)
    self._version = version
    self.taken.put(version)

  def wait(self) -> None:
    self.waits += 1

  def close(self) -> None:
    self.closed = True


class _Group(toys.RunningGroup):
  """A group that acts itself; `made` are its actors."""

  def __init__(self, address: str, error: Exception | None = None):
    self.made: queue.SimpleQueue[_ToyActor] = queue.SimpleQueue()
    self._raises = error
    super().__init__(address, self._make)

  def _make(self, welcome: handshake.Welcome, stream: object) -> _ToyActor:
    local_actor = _ToyActor(welcome, self._raises)
    self.made.put(local_actor)
    return local_actor


def _learner(version=lambda: 7, **options):
  offer = toys.local_offer(version=version)
  return toys.learner(spec=_SPEC, env=_ENV, local=offer, **options)


def test_a_group_follows_until_the_training_ends():
  versions = [7]
  with _learner(lambda: versions[0]) as (server, inference):
    group = _Group(server.addresses[0])
    local_actor = group.made.get()
    assert local_actor.taken.get() == 7
    versions[0] = 9
    assert local_actor.taken.get() == 9
    server.close(ended=True)
    group.join()
  assert group.ended is True and local_actor.closed
  assert server.reported.env_steps >= local_actor.waits
  assert local_actor.taken.empty()
  assert inference.batches == []


def test_a_group_can_be_stopped_and_closes_its_local_actor():
  with _learner() as (server, _):
    group = _Group(server.addresses[0])
    local_actor = group.made.get()
    local_actor.taken.get()
    group.group.stop()
    group.join()
  assert group.ended is False and local_actor.closed


def test_where_somebody_is_lost_the_learner_is_asked_again():
  with _learner() as (server, _):
    group = _Group(server.addresses[0], PeerLost('no Reverb.'))
    first, second = group.made.get(), group.made.get()
    assert first.closed
    assert first.welcome.run_id != second.welcome.run_id
    group.group.stop()
    group.join()
  lines = [group.lines.get() for _ in range(2)]
  assert lines[1] == 'Looking for the learner: no Reverb.'


def test_a_misfit_is_told_on_both_sides(caplog: pytest.LogCaptureFixture):
  with _learner() as (server, _):
    group = _Group(server.addresses[0], IncompatibleLearner('other agent.'))
    group.join()
  sentence = 'me cannot serve this learner: other agent.'
  assert isinstance(group.error, ActorError)
  assert str(group.error) == sentence
  assert sentence in caplog.text


def test_a_failure_of_the_local_actor_is_the_groups():
  with _learner() as (server, _):
    group = _Group(server.addresses[0], OSError('broken'))
    group.join()
    assert group.made.get().closed
  assert isinstance(group.error, OSError)


def test_a_learner_without_reverb_ends_the_group():
  with toys.learner(spec=_SPEC, env=_ENV) as (server, _):
    group = _Group(server.addresses[0])
    group.join()
  assert '--config.actors.local_inference=True' in str(group.error)
