"""Tests for seedrl_jax/actors/handshake.py."""

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import handshake, wire
from tests.actors import toys

_PLANE = types.ActionSpec(
  (2,), np.dtype(np.float32), (-1.0,) * 2, (np.inf,) * 2
)
_SPEC = toys.SPEC._replace(action=_PLANE)
_LOCAL = handshake.LocalRun(
  config={'agent': 'x', 'network': {'sizes': [1, 2], 'none': None}},
  global_env_id=np.array([13, 14], np.int32),
  num_train_envs=20,
  num_eval_envs=3,
  block_width=4,
  replay_address='localhost:8000',
  # Not in alphabetical order.
  parameters=handshake.spec_texts({'b': toys.SPEC.action, 'a': _PLANE}),
)
_WELCOME = handshake.Welcome(
  run_id='ab',
  seed=11,
  env={'id': 'Toy-v0'},
  spec=handshake.spec_texts(_SPEC._asdict()),
)


def _through(welcome: handshake.Welcome) -> handshake.Welcome:
  return handshake.unpack_welcome(wire.parse(handshake.pack_welcome(welcome)))


@pytest.mark.parametrize(
  'value',
  [
    {},
    {'num_envs': 0, 'name': ''},
    {'num_envs': True, 'name': ''},
    {'num_envs': 3, 'name': 7},
    {'num_envs': 3, 'name': '', 'inference': 'no'},
  ],
)
def test_hello_that_is_none_is_refused(value: dict):
  message = wire.parse(wire.pack_json(wire.MessageKind.HELLO, value))
  with pytest.raises(wire.WireError, match=r'HELLO must (have num_envs|name)'):
    handshake.unpack_hello(message)


def test_welcome_comes_out_as_it_went_in():
  welcome = _through(_WELCOME._replace(local=_LOCAL))
  local = welcome.local
  assert local is not None
  assert welcome._replace(local=None) == _WELCOME
  assert local.global_env_id.dtype == np.int32
  assert local.global_env_id.tolist() == [13, 14]
  assert list(local.parameters) == ['b', 'a']
  ids = _LOCAL.global_env_id
  assert local._replace(global_env_id=ids) == _LOCAL


@pytest.mark.parametrize(
  'value',
  [{'more': 1}, {'local': {}}, {'local': {'global_env_id': [1 << 40]}}],
)
def test_welcome_that_is_none_is_refused(value: dict):
  good = wire.unpack_json(wire.parse(handshake.pack_welcome(_WELCOME)))
  message = wire.parse(wire.pack_json(wire.MessageKind.WELCOME, good | value))
  with pytest.raises(wire.WireError, match='WELCOME cannot be understood'):
    handshake.unpack_welcome(message)


@pytest.mark.parametrize(
  'values',
  [{'action': _PLANE._replace(maximum=(1.0, 1.0))}, {'action_repeat': 4}],
)
def test_other_environments_are_refused(values: dict):
  (name,) = values
  with pytest.raises(ValueError, match=f'Toy-v0 has another {name} at the'):
    handshake.check_spec(_WELCOME, _SPEC._replace(**values))
  handshake.check_spec(_WELCOME, _SPEC)
