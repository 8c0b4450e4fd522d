"""Tests for seedrl_jax/actors/learner_side/slot_allocator.py."""

import grpc
import numpy as np
import pytest

from seedrl_jax.actors import handshake
from seedrl_jax.actors.learner_side import remote_stream, slot_allocator
from tests.actors import toys

_Code = grpc.StatusCode


def _allocator(*num_envs: int) -> slot_allocator.SlotAllocator:
  """Returns one for streams with so many slots, two to a batch."""
  streams = [
    remote_stream.RemoteStream(toys.SPEC, n, 2, 1, 0.0) for n in num_envs
  ]
  ids = np.array_split(np.arange(sum(num_envs)), np.cumsum(num_envs)[:-1])
  offer = toys.local_offer([x + 50 for x in ids])
  return slot_allocator.SlotAllocator({'id': 'x'}, streams, (1,), offer)


def _hello(num_envs: int, acts_itself: bool = False) -> handshake.Hello:
  return handshake.Hello(num_envs, 'toy', acts_itself)


def test_the_emptiest_stream_comes_first():
  allocator = _allocator(4, 5)
  grants = [allocator.allocate(_hello(2)) for _ in range(4)]
  assert [p.stream.num_envs for p in grants] == [5, 4, 5, 4]
  with pytest.raises(slot_allocator.StreamRefused, match='no room') as caught:
    allocator.allocate(_hello(2))
  assert caught.value.code == _Code.RESOURCE_EXHAUSTED


def test_who_acts_itself_has_ids_of_the_whole_run():
  grant = _allocator(4, 5).allocate(_hello(3, True))
  assert grant.lease.env_id.tolist() == [0, 1, 2]
  assert grant.welcome.local is not None
  # Of the second stream, the emptier.
  assert grant.welcome.local.global_env_id == [54, 55, 56]


def test_a_batch_limits_only_those_that_the_learner_acts_for():
  allocator = _allocator(4, 4)
  with pytest.raises(slot_allocator.StreamRefused, match=r'at most 2; .*size'):
    allocator.allocate(_hello(3))
  assert allocator.allocate(_hello(3, True)).stream.num_free == 1
  # Each of the streams has a share of max_envs.
  with pytest.raises(
    slot_allocator.StreamRefused,
    match=r'each of the 2 .* at most 4; .*max_envs',
  ):
    allocator.allocate(_hello(5, True))
