"""Tests for hosts/several_hosts.py, with simulated hosts, and for one."""

import contextlib
import types

import jax
import numpy as np
import pytest

from seedrl_jax.hosts import coordinator, joining, several_hosts
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import update
from seedrl_jax.run import checkpointing
from seedrl_jax.runtime import config_files, report, threads
from seedrl_jax.runtime import workdir as workdir_lib
from tests import runs
from tests.hosts import ports


@pytest.mark.parametrize(
  'flags, sentence',
  [
    (('', 2, None), 'Give all of --coordinator, --num_processes and '),
    (('a', 2, 0), '--coordinator=a: give host 0 and a free port of it, as '),
    (('a:1', 2, 2), '--process_id=2: with --num_processes=2 give 0 to 1.'),
    (('127.0.0.1:{}', 2, 1), 'host 0 was not found there for 0.1 s '),
    (('127.0.0.1:{}', 2, 0), 'Host 1 did not join for 0.1 s; '),
  ],
)
def test_hosts_that_do_not_meet_say_why(flags, sentence):
  address, count, index = flags
  with pytest.raises(
    (coordinator.HostsMismatch, coordinator.HostLost), match=sentence
  ):
    joining.join(address.format(ports.free()), count, index, timeout=0.1)


@pytest.mark.parametrize(
  'host, interface',
  [('127.0.0.1', '127.0.0.1'), ('::1', '::1'), ('fd00::1', '::'), ('a', '')],
)
def test_host_0_listens_where_the_others_look(host, interface):
  assert joining._interface(host) == interface


class _Votes:
  """Answers for host 0; `other` is its vote, None: the same as host 1's."""

  def __init__(self, other=None):
    self.other = other
    self.timeout = None
    self.lost = ''

  def gather(self, value):
    self.last = value
    return [value if self.other is None else self.other, value]

  def set_timeout(self, seconds):
    self.timeout = seconds

  def wait_lost(self, timeout):
    del timeout
    return self.lost


def _coordinator(votes, **values):
  """Returns the coordinator of host 1 in a run that has begun to start."""
  host_1 = several_hosts.SeveralHosts(1, 2, votes, None)
  host_1.check_start(runs.tiny(**values))
  return host_1


def _start_info(devices=None, **values):
  """What a host says about how it was started."""
  return {
    'devices': devices or jax.local_device_count(),
    'config': config_files.flat_config(runs.tiny(**values)),
  }


@pytest.mark.parametrize(
  'other, sentence',
  [
    (
      {**_start_info(), 'config': {**_start_info()['config'], 'loss.more': 1}},
      'Host 1 has --config.loss.more=None and host 0 --config.loss.more=1; all',
    ),
    (
      _start_info(devices=77),
      r'Host 1 has \d+ devices and host 0 77 devices; all hosts must be alike',
    ),
  ],
)
def test_hosts_that_were_started_otherwise_are_refused(other, sentence):
  with pytest.raises(coordinator.HostsMismatch, match=sentence):
    _coordinator(_Votes(other))


def test_hosts_may_differ_in_what_is_of_their_place():
  values = {'actors__addresses': ('10.0.0.1:9000',), 'env__num_threads': 3}
  votes = _Votes(_start_info(hosts__timeout=7.0, replay__address='a', **values))
  _coordinator(votes, hosts__timeout=7.0)
  assert votes.timeout == 7.0


def _state(step):
  key = jax.random.PRNGKey(step)
  return update.LearnerState(
    {'w': np.full(3, step, np.float32)}, np.int32(step), np.array(key)
  )


@pytest.mark.parametrize('has_replay', [True, False])
def test_a_host_starts_from_what_host_0_found(
  tmp_path, monkeypatch, has_replay
):
  record = report.RunRecord(
    env_steps=70, starts=2, returns=[1.0], replay='9', inference_keys=[[1, 2]]
  )
  folder = workdir_lib.Workdir(tmp_path).of_host(1)
  folder.path.mkdir(parents=True, exist_ok=True)
  if has_replay:
    (folder.replay / '9').mkdir(parents=True)
  messages = []
  saved = checkpointing.RunCheckpoints(
    runs.tiny(), folder, messages.append, leads=False
  )
  votes = _Votes()
  host_1 = _coordinator(votes)
  votes.other = vars(record)
  monkeypatch.setattr(
    several_hosts.multihost_utils, 'broadcast_one_to_all', lambda _: _state(9)
  )
  shared, state = host_1.share(vars(saved.record), saved.restore(_state(0)))
  assert state.step == 9
  saved.follow(shared, int(state.step))
  assert saved.record.env_steps == 70 and saved.record.returns == [1.0]
  # Each host has keys for its own streams.
  assert saved.record.inference_keys == []
  assert saved.record.replay == ('9' if has_replay else '')
  assert [text[:23] for text in messages] == (
    [] if has_replay else ['The replay starts empty']
  )
  # It keeps no checkpoints of its own.
  saved.storage.save(10, _state(10), {})
  assert not folder.checkpoints.exists()


class _Learner:
  """Returns fingerprints, or fails as after an update that was not finite."""

  def __init__(self, error=None):
    self.counters = learner_lib.LearnerCounters(updates=3)
    self._error = error

  def fingerprints(self):
    self.flush()
    return [(5, 1.0, 2.0)]

  def flush(self):
    if self._error is not None:
      raise self._error


def _figures(progress=0.5):
  return types.SimpleNamespace(
    local=lambda: {},
    merge=lambda figures: progress,
    progress=lambda: progress,
  )


def _vote(**values):
  return {'ready': True, 'save': False, 'prints': [], 'figures': {}, **values}


@pytest.mark.parametrize(
  'ready, progress, other, updates, save',
  [
    (True, 0.5, _vote(), True, False),
    (True, 0.5, _vote(save=True), True, True),
    (True, 0.5, _vote(ready=False), False, False),
    (False, 0.5, _vote(), False, False),
    (True, 1.0, _vote(), False, False),
  ],
)
def test_all_hosts_do_what_the_votes_say(ready, progress, other, updates, save):
  votes = _Votes()
  host_1 = _coordinator(votes)
  votes.other = other
  with host_1.deciding(_Learner(), _figures(progress)) as decide:
    # Only host 0 decides on checkpoints.
    assert decide(ready, True) == (updates, save, progress)


@pytest.mark.parametrize(
  'prints, differ',
  [
    ([], False),
    ([[5, 1.0, 2.0]], False),
    ([[5, 1.0000001, 2.0]], False),
    ([[5, 1.0, 2.0], [5, 1.1, 2.0]], True),
    ([[6, 1.0, 2.0]], True),
  ],
)
def test_hosts_whose_parameters_differ_end(prints, differ):
  votes = _Votes()
  host_1 = _coordinator(votes)
  votes.other = _vote(prints=prints)
  raises = pytest.raises(
    coordinator.ParametersDiffer, match=r'^After update 3 .* of host [01] are '
  )
  with (
    raises if differ else contextlib.nullcontext(),
    host_1.deciding(_Learner(), _figures()) as decide,
  ):
    decide(True, False)


def test_an_update_that_is_not_finite_is_voted_on_before_it_is_told():
  votes = _Votes()
  host_1 = _coordinator(votes)
  votes.other = _vote()
  error = learner_lib.NonFiniteError('Update 4 is not finite.')
  with (
    pytest.raises(learner_lib.NonFiniteError),
    host_1.deciding(_Learner(error), _figures()) as decide,
  ):
    decide(True, False)
  assert not votes.last['ready']


def test_an_error_of_a_collective_says_which_host_is_gone():
  votes = _Votes()
  host_1 = _coordinator(votes)
  votes.lost = 'Host 0 is gone.'
  with (
    pytest.raises(coordinator.HostLost, match='Host 0 is gone'),
    host_1.deciding(_Learner(), _figures()),
  ):
    raise ValueError('Connection reset.')
  with pytest.raises(coordinator.HostLost, match='Host 0 is gone'):
    host_1.must_stop()


def test_hosts_end_together_and_say_who_has_failed():
  votes = _Votes()
  host_1 = _coordinator(votes)
  votes.other = [{}, 'OSError: broken']
  # A host whose learner has failed does not vote on the end.
  failure = threads.Failure('learner', OSError('broken'), '')
  host_1.end(_Learner(), _figures(), failure)
  assert not host_1.agreed
  host_1.end(_Learner(), _figures(), None)
  assert host_1.agreed
  assert host_1.failures == [
    'Host 0 has failed (OSError: broken); start all hosts again to resume from '
    'the last checkpoint.'
  ]
