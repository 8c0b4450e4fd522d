"""Samples: requested, and requested again after a loss."""

import contextlib
import threading

import grpc
import numpy as np
import pytest

from seedrl_jax.replay.reverb import errors
from seedrl_jax.replay.reverb.client import connection, items, sampler
from seedrl_jax.replay.reverb.proto import reverb_pb2
from tests.patience import PATIENCE
from tests.replay.reverb import fake_server

_CHUNK = items.encode_chunk([np.zeros((1, 1000), np.uint8)])


@pytest.fixture(name='server')
def server_fixture(server):
  server.on_sample = _Counter()
  return server


@pytest.fixture(name='open_sampler')
def open_sampler_fixture(server, monkeypatch):
  """Makes samplers that return the keys of a batch."""
  monkeypatch.setattr(sampler, '_AHEAD', 0)
  with contextlib.ExitStack() as stack:

    def open_sampler(num_items, num_streams=1, max_per_request=16):
      monkeypatch.setattr(sampler, '_MAX_PER_REQUEST', max_per_request)
      link = connection.Connection(server.address, PATIENCE)
      new_sampler = sampler.Sampler(link, 't', num_items, _keys, num_streams)
      stack.callback(new_sampler.close)
      stack.callback(link.close)
      return new_sampler

    yield open_sampler


def _keys(drawn):
  return [item.info.item.key for item in drawn]


class _Counter:
  """Answers with one message per item; keys count from 1."""

  def __init__(self) -> None:
    self.given = 0
    self._lock = threading.Lock()

  def __call__(self, request):
    for _ in range(request.num_samples):
      yield self.one()

  def one(self):
    with self._lock:
      self.given += 1
      key = self.given
    chunk = reverb_pb2.InsertStreamRequest.FromString(_CHUNK.wire).chunks[0]
    info = reverb_pb2.SampleInfo(
      item=reverb_pb2.PrioritizedItem(key=key, table='t')
    )
    entry = reverb_pb2.SampleStreamResponse.SampleEntry(
      info=info, data=[chunk], end_of_sequence=True
    )
    return reverb_pb2.SampleStreamResponse(entries=[entry])


def test_as_many_samples_as_were_requested(server, open_sampler):
  drawing = open_sampler(7, max_per_request=4)
  assert drawing.sample() == list(range(1, 8))
  assert drawing.sample() == list(range(8, 15))
  assert [r.num_samples for r in server.samples] == [4, 3, 4, 3]
  assert {r.table for r in server.samples} == {'t'}
  # Without a time-out the server waits.
  assert not server.samples[0].HasField('rate_limiter_timeout')


def test_several_streams_share_the_demand(server, open_sampler):
  drawing = open_sampler(40, num_streams=3, max_per_request=2)
  assert sorted(drawing.sample()) == list(range(1, 41))
  assert server.on_sample.given == 40


def test_lost_server_is_asked_for_the_rest(server, open_sampler):
  losses = iter([grpc.StatusCode.UNAVAILABLE])
  counter = server.on_sample

  def lost_once(request):
    if code := next(losses, None):
      yield counter.one()
      yield counter.one()
      raise fake_server.Abort(code)
    yield from counter(request)

  server.on_sample = lost_once
  drawing = open_sampler(5, max_per_request=5)
  assert drawing.sample() == [1, 2, 3, 4, 5]
  assert [r.num_samples for r in server.samples] == [5, 3]


def test_refusal_reaches_whoever_comes_next(server, open_sampler):
  def refuse(request):
    raise fake_server.Abort(grpc.StatusCode.INTERNAL)

  server.on_sample = refuse
  drawing = open_sampler(1)
  for _ in range(2):
    with pytest.raises(errors.RequestRefused, match='table t'):
      drawing.sample()
