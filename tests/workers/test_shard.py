"""Tests one shard of a parameter server, and its messages."""

import re
import signal

import numpy as np
import optax
import pytest

from seedrl_jax.actors import addresses, credentials
from seedrl_jax.runtime import file_io
from seedrl_jax.workers import flat, shard, wire
from tests.hosts import ports

_ONES = np.ones(3, np.float32)


@pytest.fixture
def make(tmp_path):
  """Returns a function that makes a shard of three parameters."""
  file = tmp_path / '0.npz'

  def make(**kwargs):
    return shard.Shard(file, optax.trace(0.5), **kwargs)

  vectors = flat.Vectors(0 * _ONES, 0 * _ONES, [0 * _ONES])
  file.write_bytes(wire.State(vectors, 4).pack())
  return make


def _ask(found, *args):
  return wire.Reply.unpack(found.exchange(wire.Request(*args).pack()), 3)


def test_a_target_is_sent_when_it_is_new(make):
  found = make(target_update_period=2)
  first = _ask(found, 4, -1)
  assert (first.version, first.kept, [*first.target]) == (4, False, [0, 0, 0])
  epoch = first.epoch
  assert _ask(found, 4, epoch).target is None
  second = _ask(found, 4, epoch, 1.0, _ONES)
  assert (second.version, second.epoch, second.kept) == (5, epoch, True)
  assert second.target is None
  third = _ask(found, 5, epoch, 1.0, _ONES)
  assert third.version == 6 and third.epoch != epoch
  # The momentum is one half.
  assert [*third.params] == [*third.target] == [2.5] * 3
  # After another start, nobody has it.
  assert make(target_update_period=2)._epoch != third.epoch


def test_a_save_holds_all_and_only_news(make):
  found = make()
  _ask(found, 4, -1, 1.0, _ONES)
  found._file.unlink()
  found.save()
  again = make()
  state = wire.State.unpack(again.state())
  assert state.version == 5
  for x in (state.vectors.params, *state.vectors.optimizer):
    assert [*x] == [1.0] * 3
  again._file.unlink()
  again.save()
  assert not again._file.exists()


def test_a_full_disk_does_not_end_a_shard(make, monkeypatch, capsys):
  def fail(*args):
    raise file_io.NotWritten('The disk is full.')

  found = make()
  _ask(found, 4, -1, 1.0, _ONES)
  with monkeypatch.context() as patch:
    patch.setattr(file_io, 'write_whole', fail)
    found.save()
  assert capsys.readouterr().out.startswith('The disk is full. The next save')
  found.save()
  assert wire.State.unpack(found._file.read_bytes()).version == 5


@pytest.mark.parametrize(
  ('data', 'sentence'),
  [
    (b'', 'The request is cut short.'),
    (wire.Request(0, 0, 1.0, _ONES[:2]).pack(), 'has 3 parameters, not 2.'),
    (wire.Request(0, 0).pack() + _ONES.tobytes(), 'parameters, not 3.'),
    (wire.Request(0, 0, 1.0, _ONES).pack()[:-1], 'multiple of element size'),
  ],
  ids=['cut', 'small', 'no gradient', 'odd'],
)
def test_malformed_requests_are_refused(make, data, sentence):
  with pytest.raises(ValueError, match=re.escape(sentence)):
    make().exchange(data)


def test_an_address_in_use_is_refused(make):
  text = f'127.0.0.1:{ports.free()}'
  address = addresses.parse(shard.FLAG, text)
  sentence = re.escape(f'{shard.FLAG}={text}: cannot listen there')
  with (
    shard.serving(make(), address, credentials.Security()),
    pytest.raises(ValueError, match=sentence),
    shard.serving(make(), address, credentials.Security()),
  ):
    pass


def test_a_signal_ends_a_shard_once(monkeypatch):
  handlers = {}
  monkeypatch.setattr(signal, 'signal', handlers.__setitem__)
  with pytest.raises(SystemExit) as end:
    shard._end(signal.SIGTERM, None)
  assert end.value.code == 128 + signal.SIGTERM
  assert handlers == {signal.SIGTERM: signal.SIG_IGN}


def test_a_step_that_is_not_finite_changes_nothing(make):
  shard = make()
  bad = np.array([1.0, np.nan, 1.0], np.float32)
  with pytest.raises(ValueError, match='not finite'):
    _ask(shard, 4, -1, 1.0, bad)
  reply = _ask(shard, 4, -1)
  assert (reply.version, [*reply.params]) == (4, [0.0] * 3)


def test_a_version_from_the_future_is_rejected_in_the_same_epoch(make):
  shard = make()
  epoch = _ask(shard, 4, -1).epoch
  with pytest.raises(ValueError, match='Version 9 is later than 4'):
    _ask(shard, 9, epoch, 1.0, _ONES)
  # A worker may know more than a shard that has started again.
  assert _ask(shard, 9, -1).version == 9
