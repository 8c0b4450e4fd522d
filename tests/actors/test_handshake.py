"""Tests for seedrl_jax/actors/handshake.py."""

from typing import Any

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.actors import handshake, wire
from seedrl_jax.configs import base as base_config
from tests.actors import toys

_PLANE = types.ActionSpec(
  (2,), np.dtype(np.float32), (-1.0,) * 2, (np.inf,) * 2
)
_SPEC = toys.SPEC._replace(action=_PLANE)
_LOCAL = handshake.LocalRun(
  config={'agent': 'x', 'network': {'sizes': [1, 2], 'none': None}},
  global_env_id=[13, 14],
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
    {'num_envs': 3, 'name': '', 'acts_itself': 'no'},
  ],
)
def test_hello_that_is_none_is_refused(value: dict):
  message = wire.parse(wire.pack_json(value))
  with pytest.raises(wire.WireError, match='HELLO cannot'):
    handshake.unpack_hello(message)


def test_welcome_comes_out_as_it_went_in():
  welcome = _through(_WELCOME._replace(local=_LOCAL))
  assert welcome == _WELCOME._replace(local=_LOCAL)
  assert list(welcome.local.parameters) == ['b', 'a']


def _jsons(welcome: handshake.Welcome) -> dict[str, Any]:
  return wire.unpack_json(wire.parse(handshake.pack_welcome(welcome)))


@pytest.mark.parametrize('inside', [False, True])
def test_welcome_that_is_none_is_refused(inside: bool):
  good = _jsons(_WELCOME._replace(local=_LOCAL))
  fields = good['local'] if inside else good
  bad = [{k: x for k, x in fields.items() if k != name} for name in fields]
  bad += [fields | {'more': 1}]
  for value in bad:
    value = good | {'local': value} if inside else value
    message = wire.parse(wire.pack_json(value))
    with pytest.raises(wire.WireError, match='WELCOME cannot'):
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


def test_specs_of_many_choices_are_compared():
  choices = (range(3),) * 9_000
  spec = _SPEC._replace(
    observation=types.ArraySpec((9_000,), np.dtype(np.int32), choices)
  )
  texts = handshake.spec_texts(spec._asdict())
  welcome = _through(_WELCOME._replace(spec=texts))
  handshake.check_spec(welcome, spec)
  other = spec.observation._replace(categories=(*choices[1:], range(4)))
  with pytest.raises(ValueError, match='has another observation') as e:
    handshake.check_spec(welcome, spec._replace(observation=other))
  assert len(str(e.value)) < 5_000


_CONFIG = base_config.get_config()


@pytest.mark.parametrize(
  ('section', 'key', 'value', 'sentence'),
  [
    ('env', 'id', None, r'--config\.env\.id=None: give a string'),
    ('env', 'id', ..., r'--config\.env\.id is missing; start'),
    (
      'env',
      'frame_skip',
      10**9,
      r'--config\.env\.frame_skip=1000000000: give 1',
    ),
    ('env', '__class__', 1, '__class__ cannot be'),
    ('env', 'options', [], r'--config\.env\.options=\[\]: give'),
    ('network', 'frame_stack', 10**9, 'give 1 to 1,000'),
    ('network', 'torso', ..., r'network\.torso is missing, which .*vtrace'),
  ],
)
def test_a_config_that_no_learner_sends_is_refused(
  section: str, key: str, value: Any, sentence: str
):
  env = _CONFIG.env.to_dict()
  run = handshake.local_config(_CONFIG) | {'agent': 'vtrace'}
  local = _LOCAL._replace(config=run)
  welcome = _WELCOME._replace(env=env, local=local)
  handshake.requested_config(welcome)
  changed = env if section == 'env' else run[section]
  changed[key] = value
  if value is ...:
    del changed[key]
  if section == 'env':
    welcome = welcome._replace(local=None)
  with pytest.raises(ValueError, match=sentence):
    handshake.requested_config(welcome)
