"""Tests for distributed/several_hosts.py, with simulated hosts, and for one."""

import types

import jax
import numpy as np
import pytest

from seedrl_jax.distributed import several_hosts, vote_client
from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import state as state_lib
from seedrl_jax.run import checkpointing
from seedrl_jax.runtime import report, threads
from seedrl_jax.runtime import workdir as workdir_lib
from tests import runs


class _Hosts:
  """Answers for the other of two hosts."""

  def __init__(self, index=1, other=None, state=None):
    self.index, self.count = index, 2
    self.votes = self
    self.timeout = None
    self.lost = ''
    self._other = other
    self._state = state

  def gather(self, value):
    self.last = value
    other = value if self._other is None else self._other
    return [other, value] if self.index else [value, other]

  def broadcast(self, tree):
    return self._state if self.index else tree

  def set_timeout(self, seconds):
    self.timeout = seconds

  def wait_lost(self, timeout):
    del timeout
    return self.lost


def _coordinator(hosts, **values):
  """Returns the coordinator of a run that has begun to start."""
  made = several_hosts.make_coordinator(hosts)
  made.check_start(runs.tiny(**values))
  return made


def _told(devices=None, **values):
  """What a host says about how it was started."""
  return {
    'devices': devices or jax.local_device_count(),
    'config': workdir_lib.flat_config(runs.tiny(**values)),
  }


@pytest.mark.parametrize(
  'other, sentence',
  [
    (
      _told(loss__discount=0.5),
      r'--config.loss.discount: host 0 has 0.5 and host 1 has 0.99; start all',
    ),
    (
      {**_told(), 'config': {**_told()['config'], 'loss.more': 1}},
      r'--config.loss.more: host 0 has 1 and host 1 has None; ',
    ),
    (
      _told(devices=77),
      r'Host 1 has \d+ devices and host 0 77 devices; all hosts must be alike',
    ),
  ],
)
def test_hosts_that_were_started_otherwise_are_refused(other, sentence):
  with pytest.raises(vote_client.HostsMismatch, match=sentence):
    _coordinator(_Hosts(other=other))


def test_hosts_may_differ_in_what_is_of_their_place():
  other = _told(
    hosts__timeout=7.0,
    actors__addresses=('10.0.0.1:9000',),
    env__num_threads=3,
    replay__address='a',
  )
  hosts = _Hosts(other=other)
  _coordinator(hosts, hosts__timeout=7.0)
  assert hosts.timeout == 7.0


def test_several_hosts_are_not_deterministic():
  with pytest.raises(
    vote_client.HostsMismatch, match=r'--config\.deterministic=True: '
  ):
    _coordinator(_Hosts(), deterministic=True)


def _state(step):
  key = jax.random.PRNGKey(step)
  return state_lib.LearnerState(
    {'w': np.full(3, step, np.float32)}, np.int32(step), np.array(key)
  )


@pytest.mark.parametrize('has_replay', [True, False])
def test_a_host_starts_from_what_host_0_found(tmp_path, has_replay):
  told = report.RunRecord(
    env_steps=70, starts=2, returns=[1.0], replay='9', inference_keys=[[1, 2]]
  )
  config = runs.tiny()
  folder = workdir_lib.Workdir(tmp_path).of_host(1)
  folder.create()
  if has_replay:
    (folder.replay / '9').mkdir(parents=True)
  said = []
  saved = checkpointing.RunCheckpoints(config, folder, said.append, leads=False)
  hosts = _Hosts(state=_state(9))
  made = _coordinator(hosts)
  hosts._other = vars(told)
  found = saved.restore(_state(0))
  shared, state = made.share(saved.told(), found)
  assert state is hosts._state
  saved.follow(shared, int(state.step))
  assert saved.record.env_steps == 70 and saved.record.returns == [1.0]
  # Each host has keys for its own streams.
  assert saved.record.inference_keys == []
  assert saved.record.replay == ('9' if has_replay else '')
  assert (saved.replay_path is not None) == has_replay
  assert [text[:23] for text in said] == (
    [] if has_replay else ['The replay starts empty']
  )
  # It keeps no checkpoints of its own.
  saved.storage.save(10, _state(10), {})
  assert not folder.checkpoints.exists()


@pytest.mark.parametrize(
  'prints, is_same',
  [
    ([[5, 5], [5, 5]], True),
    ([[], []], True),
    # One of them wants to stop.
    ([[5, 5], []], True),
    ([[5, 5], [5, 6]], False),
    ([[5, 5], [6, 6]], False),
  ],
)
def test_fingerprints_that_differ_end_the_run(prints, is_same):
  if is_same:
    several_hosts.check_fingerprints(prints, 3)
    return
  with pytest.raises(
    several_hosts.ParametersDiffer,
    match='After update 3 the parameters of host 1 are not those of host 0; ',
  ):
    several_hosts.check_fingerprints(prints, 3)


class _Learner:
  """Returns fingerprints, or fails as after an update that was not finite."""

  def __init__(self, error=None):
    self.counters = learner_lib.LearnerCounters(updates=3)
    self._error = error

  def fingerprints(self):
    self.flush()
    return [5]

  def flush(self):
    if self._error is not None:
      raise self._error


class _Figures:
  """Figures with a given progress."""

  def __init__(self, progress=0.5):
    self._progress = progress

  def tell(self, is_last=False):
    return {'last': is_last}

  def hear(self, told):
    assert len(told) == 2
    return self._progress


def _vote(**values):
  return {'ready': True, 'save': False, 'prints': [], 'figures': {}, **values}


@pytest.mark.parametrize(
  'ready, progress, other, update, save',
  [
    (True, 0.5, _vote(), True, False),
    (True, 0.5, _vote(save=True), True, True),
    (True, 0.5, _vote(ready=False), False, False),
    (False, 0.5, _vote(), False, False),
    (True, 1.0, _vote(), False, False),
  ],
)
def test_all_hosts_do_what_the_votes_say(ready, progress, other, update, save):
  hosts = _Hosts()
  made = _coordinator(hosts)
  hosts._other = other
  with made.deciding(_Learner(), _Figures(progress)) as decide:
    # Only host 0 decides on checkpoints.
    assert decide(ready, True) == (update, save, progress)


def test_an_update_that_is_not_finite_is_voted_on_before_it_is_told():
  hosts = _Hosts()
  made = _coordinator(hosts)
  hosts._other = _vote()
  error = learner_lib.NonFiniteError('Update 4 is not finite.')
  with (
    pytest.raises(learner_lib.NonFiniteError),
    made.deciding(_Learner(error), _Figures()) as decide,
  ):
    decide(True, False)
  assert not hosts.last['ready']


def test_an_error_of_a_collective_says_which_host_is_gone():
  hosts = _Hosts()
  made = _coordinator(hosts)
  hosts.lost = 'Host 0 is gone.'
  for error in (ValueError('Connection reset.'), RuntimeError('Gloo.')):
    with (
      pytest.raises(vote_client.HostLost, match='Host 0 is gone'),
      made.deciding(_Learner(), _Figures()),
    ):
      raise error
  with pytest.raises(vote_client.HostLost, match='Host 0 is gone'):
    made.must_stop()


def test_hosts_end_together_and_say_who_has_failed():
  hosts = _Hosts()
  made = _coordinator(hosts)
  hosts._other = [{'last': True}, 'OSError: broken']
  assert not made.agreed
  made.end(_Learner(), _Figures(), None)
  assert made.agreed
  assert made.failures == [
    'Host 0 has failed (OSError: broken); start all hosts again to resume from '
    'the last checkpoint.'
  ]


def test_a_host_whose_learner_has_failed_does_not_vote_on_the_end():
  made = _coordinator(_Hosts())
  failure = threads.Failure('learner', OSError('broken'), '')
  made.end(_Learner(), _Figures(), failure)
  assert not made.agreed


def test_a_single_host_decides_for_itself():
  made = several_hosts.make_coordinator(None)
  assert (made.index, made.count, made.agreed) == (0, 1, True)
  figures = types.SimpleNamespace(progress=lambda: 2.0)
  with made.deciding(_Learner(), figures) as decide:
    for ready in (True, False):
      assert decide(ready, True) == (ready, True, 2.0)
