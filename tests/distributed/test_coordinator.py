"""Tests for what a run does together with those of other hosts.

The hosts are simulated: what the others say is written down.
"""

import contextlib

import jax
import numpy as np
import pytest

from seedrl_jax.distributed import coordinator, vote_client
from seedrl_jax.learner import state as state_lib
from seedrl_jax.run import checkpointing, reporting
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.runtime import record
from seedrl_jax.runtime import workdir as workdir_lib
from tests import runs


class _Hosts:
  """Answers for the other of two hosts."""

  def __init__(self, index=1, other=None, state=None):
    self.index, self.count = index, 2
    self.leads = index == 0
    self.timeout = None
    self._other = other
    self._state = state

  def gather(self, value):
    other = value if self._other is None else self._other
    return [other, value] if self.index else [value, other]

  def broadcast(self, tree):
    return tree if self.leads else self._state

  def set_timeout(self, seconds):
    self.timeout = seconds


def _told(devices=None, **values):
  """What a host tells of how it was started."""
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
  with pytest.raises(vote_client.Refused, match=sentence):
    coordinator.JointRun(_Hosts(other=other), runs.tiny())


def test_hosts_may_differ_in_what_is_of_their_place():
  other = _told(
    hosts__timeout=7.0,
    actors__addresses=('10.0.0.1:9000',),
    env__num_threads=3,
    replay__address='a',
  )
  hosts = _Hosts(other=other)
  coordinator.JointRun(hosts, runs.tiny(hosts__timeout=7.0))
  assert hosts.timeout == 7.0


def test_several_hosts_are_not_deterministic():
  with pytest.raises(
    vote_client.Refused, match=r'--config\.deterministic=True: '
  ):
    coordinator.JointRun(_Hosts(), runs.tiny(deterministic=True))


def _state(step):
  key = jax.random.PRNGKey(step)
  return state_lib.LearnerState(
    {'w': np.full(3, step, np.float32)}, np.int32(step), np.array(key)
  )


@pytest.mark.parametrize('has_replay', [True, False])
def test_a_host_starts_from_what_host_0_found(tmp_path, has_replay):
  told = record.RunRecord(
    env_steps=70, starts=2, returns=[1.0], replay='9', inference_keys=[[1, 2]]
  )
  config = runs.tiny()
  folder = workdir_lib.Workdir(tmp_path).of_host(1)
  folder.create()
  if has_replay:
    (folder.replay / '9').mkdir(parents=True)
  said = []
  saved = checkpointing.SavedRun(config, folder, said.append, leads=False)
  hosts = _Hosts(state=_state(9))
  joint = coordinator.JointRun(hosts, config)
  hosts._other = vars(told)
  assert joint.share(saved.restore(_state(0)), saved) is hosts._state
  assert saved.record.env_steps == 70 and saved.record.returns == [1.0]
  # Keys are of each host's own streams.
  assert saved.record.inference_keys == []
  assert saved.record.replay == ('9' if has_replay else '')
  assert (saved.replay_path is not None) == has_replay
  assert [text[:23] for text in said] == (
    [] if has_replay else ['The replay starts empty']
  )
  # It keeps no checkpoints of its own.
  saved.save(lambda: _state(10), lambda: saved.record)
  assert not folder.checkpoints.exists()
  saved.close()


@pytest.mark.parametrize(
  'prints, is_same',
  [
    ([[5, 5], [5, 5]], True),
    ([[], []], True),
    # One of them wants to stop.
    ([[5, 5], None], True),
    ([[5, 5], [5, 6]], False),
    ([[5, 5], [6, 6]], False),
  ],
)
def test_fingerprints_that_differ_end_the_run(prints, is_same):
  joint = coordinator.JointRun(_Hosts(), runs.tiny())
  votes = [{'prints': x} for x in prints]
  if is_same:
    joint._compare(votes, 3)
    return
  with pytest.raises(
    coordinator.ParametersDiffer,
    match='After update 3 the parameters of host 1 are not those of host 0; ',
  ):
    joint._compare(votes, 3)


def test_a_host_without_environments_says_once_how_to_start_an_actor(tmp_path):
  run = runs.Run(
    runs.tiny(env__num_envs=0, actors__max_envs=8, num_eval_envs=0), tmp_path
  )
  with contextlib.closing(run.system.parts):
    reports = run.system._reports
    for _ in range(2):
      reports.write()
  assert run.output.count('This host waits for actors; start one with') == 1


def test_a_run_of_several_hosts_has_the_others_figures(tmp_path):
  """Host 0 adds up; a host that does not lead tells its episodes."""
  run = runs.Run(runs.tiny(), tmp_path)
  reports = run.system._reports
  reports._place = layout_lib.Place(0, 2)
  own = reports.tell()
  assert 'episodes' not in own
  other = {**own, 'env_steps': 399, 'episodes': [(2.0, 5), (4.0, 7)]}
  assert reports.hear([own, other]) == 399 / 400
  assert reports.record().env_steps == 399
  assert reports.hear([own, {**other, 'env_steps': 400, 'episodes': []}]) == 1
  reports._collect_episodes()
  assert reports.summary('finished')['mean_return_100'] == 3.0
  curves = {'replay/size_unrolls': 7.0, 'replay/samples_per_insert': 3.0}
  reports.hear([own, {**other, 'lag_max': 9, 'curves': curves}])
  # Later votes do not always have them.
  reports.hear([own, {**other, 'env_steps': 400}])
  assert reports._lag_max == 9
  own_curves = {'replay/size_unrolls': 2.0, 'replay/samples_per_insert': 1.0}
  assert reporting._together([own_curves, *reports._curves.values()]) == {
    'replay/size_unrolls': 9.0,
    'replay/samples_per_insert': 2.0,
  }
  assert reports.is_finished()
  run.train()
