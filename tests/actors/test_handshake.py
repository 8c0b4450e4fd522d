"""Tests for seedrl_jax/actors/handshake.py."""

import ml_collections
import numpy as np
import pytest

from configs import base as base_config
from seedrl_jax import types
from seedrl_jax.actors import handshake, wire
from seedrl_jax.envs import factory
from tests.actors import toys


def _welcome(**values) -> handshake.Welcome:
  fields = {
    'run_id': 'ab',
    'env_id': np.array([3, 4], np.int32),
    'seed': 11,
    'env': {'id': 'Toy-v0'},
    'spec': toys.SPEC,
  }
  return handshake.Welcome(**fields | values)


def _through(welcome: handshake.Welcome) -> handshake.Welcome:
  return handshake.unpack_welcome(wire.parse(handshake.pack_welcome(welcome)))


def test_hello_comes_out_as_it_went_in():
  hello = handshake.Hello(4, 'host:1')
  assert (
    handshake.unpack_hello(wire.parse(handshake.pack_hello(hello))) == hello
  )


@pytest.mark.parametrize(
  'value',
  [
    {},
    {'num_envs': 0, 'name': ''},
    {'num_envs': True, 'name': ''},
    {'num_envs': '3', 'name': ''},
    {'num_envs': 3, 'name': 7},
    {'num_envs': 3, 'name': '', 'inference': 'no'},
    {'num_envs': 3, 'name': ''},
  ],
)
def test_hello_that_is_none_is_refused(value: dict):
  message = wire.parse(wire.pack_json(wire.MessageKind.HELLO, value))
  with pytest.raises(wire.WireError, match=r'HELLO must (have num_envs|name)'):
    handshake.unpack_hello(message)


def test_welcome_comes_out_as_it_went_in():
  sent, got = _welcome(), _through(_welcome())
  assert got.env_id.dtype == np.int32
  assert got.env_id.tolist() == [3, 4]
  assert got._replace(env_id=sent.env_id) == sent
  assert list(got.spec.observation) == ['image', 'more']
  assert got.local is None


_LOCAL = handshake.LocalRun(
  config={'agent': 'x', 'network': {'sizes': [1, 2], 'none': None}},
  global_env_id=np.array([13, 14], np.int32),
  num_train_envs=20,
  num_eval_envs=3,
  block_width=4,
  replay_address='localhost:8000',
  # Not in alphabetical order.
  parameters={'b': toys.PARAMETERS['bias'], 'a': toys.PARAMETERS['kernel']},
)


def test_what_a_local_actor_is_told_comes_out_as_it_went_in():
  local = _through(_welcome(local=_LOCAL)).local
  assert local is not None
  assert local.global_env_id.dtype == np.int32
  assert local.global_env_id.tolist() == [13, 14]
  assert list(local.parameters) == ['b', 'a']
  ids = _LOCAL.global_env_id
  assert local._replace(global_env_id=ids) == _LOCAL


@pytest.mark.parametrize(
  'value',
  [
    {'parameters': [['a', ['no dtype', [1]]]]},
    {'config': 3},
    {'global_env_id': 'x'},
    {'more': 1},
  ],
)
def test_what_a_local_actor_cannot_understand_is_refused(value: dict):
  welcome = _welcome(local=_LOCAL)
  good = wire.unpack_json(wire.parse(handshake.pack_welcome(welcome)))
  bad = good | {'local': good['local'] | value}
  message = wire.parse(wire.pack_json(wire.MessageKind.WELCOME, bad))
  with pytest.raises(wire.WireError, match='WELCOME cannot be understood'):
    handshake.unpack_welcome(message)


@pytest.mark.parametrize(
  'value',
  [
    {'seed': 'x'},
    {'env_id': [[1], 2]},
    {'env_id': [1 << 40]},
    {'spec': {'name': 'x'}},
    {'spec': {'observation': ['no dtype', [1]]}},
    {'env': 3},
  ],
)
def test_welcome_that_is_none_is_refused(value: dict):
  good = wire.unpack_json(wire.parse(handshake.pack_welcome(_welcome())))
  message = wire.parse(wire.pack_json(wire.MessageKind.WELCOME, good | value))
  with pytest.raises(wire.WireError, match='WELCOME cannot be understood'):
    handshake.unpack_welcome(message)


def test_an_actor_makes_the_environments_of_the_learners_config():
  config = base_config.get_config().env
  config.max_episode_steps = 7
  config.num_threads = 3
  values = handshake.env_values(config)
  assert not values.keys() & {'num_envs', 'batch_size', 'num_threads'}
  spec = factory.make_spec(config)
  welcome = _through(_welcome(env=values, spec=spec))
  made = handshake.env_config(welcome, num_threads=1, affinity=-1)
  assert isinstance(made, ml_collections.ConfigDict)
  assert made.num_threads == 1 and made.max_episode_steps == 7
  handshake.check_specs(welcome.spec, factory.make_spec(made))
  stream = factory.make_stream(made, seed=1, num_envs=2, batch_size=2)
  assert stream.recv().observation.shape == (2, 4)
  stream.close()


_PLANE = types.ActionSpec((2,), np.dtype(np.float32), (-1.0,) * 2, (1.0,) * 2)


@pytest.mark.parametrize(
  'values, sentence',
  [
    (
      {'action': types.discrete(6)},
      'another action at the actor than at the learner: 6 discrete actions '
      'instead of float32 [2] in [-1, 1]',
    ),
    (
      {'action': _PLANE._replace(shape=(2, 1), minimum=(-np.inf, 0.5))},
      'another action at the actor than at the learner: float32 [2, 1] in '
      '[(-inf, 0.5), 1] instead of float32 [2] in [-1, 1]',
    ),
    (
      {'observation': types.ArraySpec((3,), np.dtype(np.uint8))},
      'another observation at the actor than at the learner: uint8 [3] instead '
      'of image uint8 [3, 2], more flag bool [], vector float32 [2]',
    ),
    (
      {'action_repeat': 4},
      'another action_repeat at the actor than at the learner: 4 instead of 1',
    ),
  ],
)
def test_other_environments_are_refused_in_a_sentence(
  values: dict, sentence: str
):
  spec = toys.SPEC._replace(action=_PLANE)
  with pytest.raises(ValueError) as caught:
    handshake.check_specs(spec, spec._replace(**values))
  assert str(caught.value) == (
    f'Toy-v0 has {sentence}; install the same environments on both sides.'
  )


@pytest.mark.parametrize(
  'action', [_PLANE, _PLANE._replace(minimum=(-np.inf, 0.1))]
)
def test_actions_of_any_spec_are_told(action: types.ActionSpec):
  spec = toys.SPEC._replace(action=action)
  assert _through(_welcome(spec=spec)).spec == spec
