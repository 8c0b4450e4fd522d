"""Tests for seedrl_jax/actors/learner_side/slot_allocator.py."""

import grpc
import numpy as np
import pytest

from seedrl_jax.actors import handshake
from seedrl_jax.actors.learner_side import remote_stream, slot_allocator
from tests.actors import toys

_Code = grpc.StatusCode


def _admission(*num_envs: int, local: bool = True) -> slot_allocator.Admission:
  """Lets actors into streams of so many slots, two to a batch."""
  streams = [
    remote_stream.RemoteStream(toys.SPEC, n, 2, 1, 0.0) for n in num_envs
  ]
  ids = np.array_split(np.arange(sum(num_envs)), np.cumsum(num_envs)[:-1])
  offer = toys.local_offer()._replace(global_env_id=[x + 50 for x in ids])
  return slot_allocator.Admission(
    toys.SPEC, {'id': 'x'}, streams, (1,), offer if local else None
  )


def _hello(num_envs: int, inference: str) -> handshake.Hello:
  return handshake.Hello(num_envs, 'toy', inference)


def test_the_emptiest_stream_comes_first():
  admitting = _admission(4, 5)
  places = [admitting.admit(_hello(2, handshake.CENTRAL)) for _ in range(4)]
  assert [p.stream.num_envs for p in places] == [5, 4, 5, 4]
  with pytest.raises(slot_allocator.Refused, match='no room') as caught:
    admitting.admit(_hello(2, handshake.CENTRAL))
  assert caught.value.code == _Code.RESOURCE_EXHAUSTED


def test_who_acts_itself_has_ids_of_the_whole_run():
  admitting = _admission(4, 5)
  place = admitting.admit(_hello(3, handshake.LOCAL))
  assert place.run.acts_itself
  assert place.welcome.env_id.tolist() == [0, 1, 2]
  local = place.welcome.local
  assert local is not None
  # Of the second stream, the emptier.
  assert local.global_env_id.tolist() == [54, 55, 56]
  assert local.num_train_envs == 120


def test_a_batch_limits_only_those_that_the_learner_acts_for():
  admitting = _admission(4)
  with pytest.raises(slot_allocator.Refused, match='batch_size allows 2'):
    admitting.admit(_hello(3, handshake.CENTRAL))
  assert admitting.admit(_hello(3, handshake.LOCAL)).stream.num_free == 1
  with pytest.raises(slot_allocator.Refused, match='max_envs allows 4'):
    admitting.admit(_hello(5, handshake.LOCAL))


def test_without_an_offer_nobody_acts_itself():
  admitting = _admission(4, local=False)
  with pytest.raises(
    slot_allocator.Refused, match=r'actors\.local_inference=True'
  ):
    admitting.admit(_hello(1, handshake.LOCAL))
  assert admitting.admit(_hello(2, handshake.CENTRAL)).welcome.local is None


def test_every_place_has_a_seed_and_a_name_of_its_own():
  admitting = _admission(4)
  welcomes = [
    admitting.admit(_hello(1, handshake.CENTRAL)).welcome for _ in range(4)
  ]
  assert len({w.seed for w in welcomes}) == 4
  assert len({w.run_id for w in welcomes}) == 4
