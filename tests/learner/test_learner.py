"""Tests the learner: its order, counters and failures."""

import dataclasses
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.learner import learner as learner_lib
from seedrl_jax.learner import prefetch, update
from seedrl_jax.replay import base as replay_base
from tests.learner import toys
from tests.patience import PATIENCE


class _Log:
  """Records calls in order; also a publisher and a priority table."""

  def __init__(self):
    self.events = []

  def publish(self, version, params):
    self.events.append(f'publish {version}')

  def update_priorities(self, priorities):
    self.events.append('priorities')


class _Finite:
  """An `UpdateOutput.finite` that is ready once the test says so."""

  def __init__(self, log, number):
    self.ready = False
    self._log, self._number = log, number

  def is_ready(self):
    return self.ready

  def addressable_data(self, index):
    return self

  def __array__(self, dtype=None, copy=None):
    self._log.events.append(f'wait {self._number}')
    return np.array(True)


class _SlowUpdater:
  """Dispatches updates that end only on request."""

  devices = local_devices = tuple(jax.devices()[:1])
  agent = toys.make_agent()

  def __init__(self, log):
    self.dispatched = []
    self._log = log

  def replicate(self, state):
    return jax.tree.map(lambda x: jnp.asarray(x)[None], state)

  def __call__(self, state, batch, progress):
    number = len(self.dispatched) + 1
    self._log.events.append(f'dispatch {number}')
    finite = _Finite(self._log, number)
    self.dispatched.append(finite)
    metrics = update.Metrics.pack({})
    output = update.Output(metrics, finite, jnp.zeros((1, 1)))
    return update.UpdateResult(state, output, state.agent.params, 1)


def _item(log, rewards, version_mean=0.0, version_min=0, name=''):
  """Returns a batch for one device; its release is logged."""
  n = len(rewards)
  batch = jax.tree.map(lambda x: x[None], toys.batch_of(rewards))

  def release(blocks):
    log.events.append(f'release {name}')
    # The memory is used again.
    batch.unroll.steps.reward.fill(np.nan)

  sample = replay_base.ReplaySample(
    ['block'],
    on_release=release,
    keys=np.arange(n, dtype=np.uint64) + 50,
    probabilities=np.ones(n),
    table_size=np.ones(n),
    priorities=np.ones(n),
    on_update=log.update_priorities,
  )
  return prefetch.Prefetched(batch, sample, version_mean, version_min)


def _state(step=0):
  state = update.initial_state(toys.make_agent(), jax.random.PRNGKey(0))
  return state._replace(step=np.int32(step))


def _agent(**changes):
  agent = toys.make_agent(learning_rate=lambda progress: jnp.float32(1))
  return dataclasses.replace(agent, **changes)


def _learner(log, publisher=None, step=0, publish_period=1, agent=None):
  """Returns a learner with real updates on one device."""
  agent = agent or _agent()
  return learner_lib.Learner(
    update.Updater(agent, jax.devices()[:1]),
    _state(step),
    publisher or log,
    publish_period,
  )


def _slow_learner(log):
  updater = _SlowUpdater(log)
  learner = learner_lib.Learner(updater, _state(), log)
  assert log.events == ['publish 0']
  log.events.clear()
  return learner, updater


def _finished(number, name):
  return [
    f'wait {number}',
    f'publish {number}',
    'priorities',
    f'release {name}',
  ]


def test_next_update_is_dispatched_before_the_last_is_waited_for():
  log = _Log()
  learner, _ = _slow_learner(log)
  learner.step(_item(log, [0.0], name='a'), 0.0)
  assert log.events == ['dispatch 1']
  learner.step(_item(log, [0.0], name='b'), 0.0)
  # Published and released only when finished.
  assert log.events == ['dispatch 1', 'dispatch 2', *_finished(1, 'a')]
  assert learner.counters.updates == 1
  log.events.clear()
  learner.flush()
  assert log.events == _finished(2, 'b')
  assert learner.counters.updates == 2
  learner.flush()
  assert log.events == _finished(2, 'b')


def test_update_that_has_ended_is_finished_at_once():
  log = _Log()
  learner, updater = _slow_learner(log)
  learner.step(_item(log, [0.0], name='a'), 0.0)
  updater.dispatched[0].ready = True
  log.events.clear()
  learner.step(_item(log, [0.0], name='b'), 0.0)
  assert log.events == ['dispatch 2', *_finished(1, 'a')]
  updater.dispatched[1].ready = True
  learner.step(_item(log, [0.0], name='c'), 0.0)
  assert learner.counters.updates == 2


def test_what_inference_reads_outlives_the_updates():
  # On the learner's own device, publishing copies nothing.
  device = jax.devices()[0]
  publisher = learner_lib.ParameterPublisher([device])
  log = _Log()
  learner = _learner(log, publisher)
  held = [publisher.latest(device)]
  for _ in range(4):
    learner.step(_item(log, [1.0]), 0.0)
    learner.flush()
    held.append(publisher.latest(device))
  values = [np.unique(params['w']).tolist() for _, params in held]
  expected = [[0.0], [0.25], [0.4375], [0.578125], [0.68359375]]
  assert values == expected
  assert [version for version, _ in held] == [0, 1, 2, 3, 4]


def test_versions_and_lag_count_the_updates_of_a_batch():
  log = _Log()
  agent = _agent(updates_per_batch=3)
  learner = _learner(log, step=8, publish_period=4, agent=agent)
  for _ in range(4):
    learner.step(_item(log, [1.0], version_mean=8.0, version_min=8), 0.0)
  learner.flush()
  published = [e for e in log.events if e.startswith('publish')]
  # Batches end at 11, 14, 17 and 20; periods at 12, 16 and 20.
  assert published == ['publish 8', 'publish 14', 'publish 17', 'publish 20']
  assert learner.counters.updates == int(learner.state().step) == 20
  assert learner.counters.lag_sum == 0 + 1 + 2 + 3


def test_policy_lag():
  log = _Log()
  learner = _learner(log, step=10)
  learner.step(_item(log, [0.0], version_mean=8.5, version_min=4), 0.0)
  learner.step(_item(log, [0.0], version_mean=11.0, version_min=9), 0.0)
  counters = learner.counters
  assert (counters.lag_sum, counters.lag_updates) == (1.5, 2)
  assert learner.take_lag_max() == 6
  assert learner.take_lag_max() == 0
  # Of a replay that was saved just after the parameters.
  learner.step(_item(log, [0.0], version_mean=12.5, version_min=12), 0.0)
  assert (counters.lag_sum, learner.take_lag_max()) == (1.5, 0)


def test_share_of_clipped_gradients_is_of_the_last_updates():
  log = _Log()
  learner = _learner(log, agent=toys.make_agent(clip_norm=toys.SIZE))
  for i in range(4):
    # The norm of the gradient is 8 times the reward.
    learner.step(_item(log, [100.0 if i == 2 else 0.0]), 0.0)
  learner.flush()
  metrics = learner.metrics()
  assert metrics['health/clipped_share'] == 0.25


def test_measures_on_a_batch_before_its_release():
  log = _Log()

  def measure(params, inputs, core):
    return {'health/w': params['w'][0] + inputs.reward[0, 0]}

  learner = _learner(log, agent=_agent(measure=measure))
  learner.compile([toys.batch_of([0.0])])
  learner.step(_item(log, [1.0], name='a'), 0.0)
  learner.flush()
  assert log.events[-1] == 'release a'
  # After the update.
  w = float(learner.state().agent.params['w'][0])
  assert w and learner.metrics()['health/w'] == w + 1.0
  # Taken once.
  assert 'health/w' not in learner.metrics()


def test_update_that_is_not_finite_ends_in_a_sentence():
  log = _Log()
  learner = _learner(log, step=4)
  learner.step(_item(log, [1.0], name='a'), 0.0)
  good = learner.state()
  log.events.clear()
  message = (
    r'Update 6 is not finite \(gradient_norm nan, health/update_ratio nan, '
    r'total nan, update_norm nan\);'
  )
  with pytest.raises(learner_lib.NonFiniteError, match=message):
    # The first may be finished already.
    learner.step(_item(log, [np.nan], name='bad'), 0.0)
    learner.flush()
  assert log.events == []
  assert learner.counters.updates == 5
  # The final state must not include the bad update.
  chex.assert_trees_all_equal(learner.state(), good)


def test_compile_leaves_no_trace():
  log = _Log()
  learner = _learner(log)
  learner.step(_item(log, [1.0]), 0.0)
  before = learner.state()
  log.events.clear()
  learner.compile([toys.batch_of([5.0])])
  chex.assert_trees_all_equal(learner.state(), before)
  assert log.events == []
  assert learner.counters.updates == 1
  learner.step(_item(log, [1.0]), 0.0)
  assert int(learner.state().step) == 2


def _params(version):
  """Returns parameters filled with their version, on a device without one."""
  params = {'a': np.full((3, 4), version, np.float32), 'b': np.ones(2)}
  return jax.device_put(params, jax.devices()[-1])


def test_every_inference_device_gets_a_copy_that_outlives_its_source():
  devices = jax.devices()[:3]
  publisher = learner_lib.ParameterPublisher(devices)
  for version in 4, 5:
    source = _params(version)
    publisher.publish(version, source)
    jax.tree.map(lambda x: x.delete(), source)
  for device in devices:
    version, params = publisher.latest(device)
    assert version == 5 and (np.asarray(params['a']) == 5).all()
    assert params['b'].devices() == {device}


def test_reader_gets_the_old_ones_until_all_of_the_new_are_there(monkeypatch):
  copying, may_finish = threading.Event(), threading.Event()

  def slow_copy(tree):
    copying.set()
    assert may_finish.wait(PATIENCE)
    return tree

  devices = jax.devices()[:2]
  publisher = learner_lib.ParameterPublisher(devices)
  publisher.publish(1, _params(1))
  monkeypatch.setattr(learner_lib.jax, 'block_until_ready', slow_copy)
  thread = threading.Thread(
    target=publisher.publish, args=(2, _params(2)), daemon=True
  )
  thread.start()
  assert copying.wait(PATIENCE)
  # No lock: readers do not wait for the copy.
  for device in devices:
    version, params = publisher.latest(device)
    assert version == 1 and (np.asarray(params['a']) == 1).all()
  may_finish.set()
  thread.join(PATIENCE)
  assert [publisher.latest(device)[0] for device in devices] == [2, 2]
