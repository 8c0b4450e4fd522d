"""Tests publishing of parameters to the inference devices."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax.learner import learner as learner_lib

_PATIENCE = 600.0  # only for a test that has already failed


def _params(version, device=None):
  """Returns parameters filled with their version."""
  params = {
    'a': np.full((1, 100, 10), version, np.float32),
    'b': np.full((1, 7), version, np.float32),
  }
  return jax.device_put(params, device or jax.devices()[-1])


def _version(params):
  values = {v for x in jax.tree.leaves(params) for v in np.unique(x)}
  assert len(values) == 1, f'a mixture of {values}'
  return values.pop()


def test_every_inference_device_gets_its_copy():
  devices = jax.devices()[:3]
  publisher = learner_lib.ParameterPublisher(devices)
  publisher.publish(4, _params(4))
  publisher.publish(5, _params(5))
  for device in devices:
    version, params = publisher.latest(device)
    assert version == _version(params) == 5
    for leaf in jax.tree.leaves(params):
      assert leaf.devices() == {device}
      assert leaf.is_ready()


def test_copy_outlives_its_source():
  source = _params(1)
  publisher = learner_lib.ParameterPublisher(jax.devices()[:2])
  publisher.publish(1, source)
  jax.tree.map(lambda x: x.delete(), source)
  for device in jax.devices()[:2]:
    assert _version(publisher.latest(device)[1]) == 1


def test_what_a_reader_holds_stays_as_it_is():
  device = jax.devices()[0]
  publisher = learner_lib.ParameterPublisher([device])
  publisher.publish(1, _params(1))
  _, held = publisher.latest(device)
  publisher.publish(2, _params(2))
  assert _version(held) == 1


def test_a_device_that_does_no_inference_has_none():
  publisher = learner_lib.ParameterPublisher(jax.devices()[:1])
  publisher.publish(1, _params(1))
  with pytest.raises(KeyError):
    publisher.latest(jax.devices()[1])


def test_reader_gets_the_old_ones_until_all_of_the_new_are_there(monkeypatch):
  copying, may_finish = threading.Event(), threading.Event()

  def slow_copy(tree):
    copying.set()
    assert may_finish.wait(_PATIENCE)
    return jax.tree.map(jnp.asarray, tree)

  devices = jax.devices()[:2]
  publisher = learner_lib.ParameterPublisher(devices)
  publisher.publish(1, _params(1))
  monkeypatch.setattr(learner_lib.jax, 'block_until_ready', slow_copy)
  thread = threading.Thread(
    target=publisher.publish, args=(2, _params(2)), daemon=True
  )
  thread.start()
  assert copying.wait(_PATIENCE)
  # No lock: readers do not wait for the copy.
  for device in devices:
    version, params = publisher.latest(device)
    assert version == _version(params) == 1
  may_finish.set()
  thread.join(_PATIENCE)
  assert [publisher.latest(device)[0] for device in devices] == [2, 2]


def test_readers_never_see_a_half_set():
  devices = jax.devices()[:2]
  publisher = learner_lib.ParameterPublisher(devices)
  publisher.publish(0, _params(0))
  last, errors = 60, []

  def read(device):
    seen = 0
    try:
      while seen < last:
        version, params = publisher.latest(device)
        assert _version(params) == version >= seen
        seen = version
    except BaseException as e:
      errors.append(e)

  readers = [
    threading.Thread(target=read, args=(device,), daemon=True)
    for device in devices
  ]
  for reader in readers:
    reader.start()
  for version in range(1, last + 1):
    publisher.publish(version, _params(version))
  for reader in readers:
    reader.join(_PATIENCE)
  assert not any(reader.is_alive() for reader in readers)
  assert not errors
