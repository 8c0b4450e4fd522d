"""Tests which masks are found, and what environments may do with them."""

import itertools
import logging

import numpy as np
import pytest
from gymnasium import spaces

from seedrl_jax import types
from seedrl_jax.demonstrations import teacher
from seedrl_jax.envs import (
  action_masks,
  base,
  envpool_stream,
  factory,
  gymnasium_envs,
)
from seedrl_jax.evaluation import env_check
from seedrl_jax.runtime import env_specs
from tests import runs
from tests.envs import streams

_ONE = types.discrete(4)
_TWO = types.ActionSpec((2,), np.dtype(np.int32), (0, 0), (3, 9))
_BOX = types.ActionSpec((1,), np.dtype(np.float32), (-1.0,), (1.0,))
_HYBRID = types.hybrid([_ONE, _BOX, _TWO])


def _section(name='make', mask='auto', **kwargs):
  return streams.config(
    'CartPole-v1',
    factory=f'tests.envs.masked:{name}',
    factory_kwargs=kwargs,
    action_mask=mask,
  )


def _play(section, steps=60, num_envs=3):
  """Returns outputs of random legal actions."""
  stream = streams.make(section, num_envs)
  rng, outputs = np.random.default_rng(0), []
  try:
    for _ in range(steps):
      output = stream.recv()
      streams.assert_fits(output, stream.spec)
      outputs.append(output)
      action = action_masks.sample(stream.spec, rng, output.observation)
      stream.send(action, output.env_id)
  finally:
    stream.close()
  return outputs


@pytest.mark.parametrize(
  ('setting', 'key', 'shape', 'action', 'dtype', 'expected'),
  [
    ('auto', 'action_mask', (4,), _ONE, bool, ''),
    ('auto', 'legal_action_mask', (4,), _ONE, np.int8, ''),
    ('auto', 'action_mask', (14,), _TWO, np.uint8, ''),
    ('auto', 'action_mask', (2, 7), _TWO, np.int32, ''),
    ('auto', 'action_mask', (18,), _HYBRID, bool, ''),
    ('m', 'm', (2, 2), _ONE, bool, ''),
    ('auto', 'm', (4,), _ONE, bool, None),
    ('', 'action_mask', (4,), _ONE, bool, None),
    ('auto', 'action_mask', (4, 10), _TWO, bool, r'\(4, 10\).* 14 numbers'),
    ('auto', 'action_mask', (14,), _HYBRID, bool, r'\(14,\).* 18 numbers'),
    ('auto', 'action_mask', (4,), _ONE, np.float32, 'booleans or integers'),
    ('auto', 'action_mask', (1,), _BOX, bool, 'continuous'),
    ('m', 'm', (4, 10), _TWO, bool, r'\(4, 10\).* 14 numbers'),
    ('m', 'action_mask', (4,), _ONE, bool, 'does not exist'),
  ],
)
def test_which_arrays_are_masks(
  setting, key, shape, action, dtype, expected, caplog
):
  section = streams.config('Env-v0', action_mask=setting)
  observation = {
    key: types.ArraySpec(shape, np.dtype(dtype)),
    'x': types.ArraySpec((2,), np.dtype(np.float32)),
  }
  spec = types.StreamSpec(observation, action, 1, 'Env-v0')
  action_masks.warn_once.cache_clear()
  if setting == 'm' and expected:
    with pytest.raises(ValueError, match='action_mask=m: .*' + expected):
      action_masks.with_mask(section, spec)
    return
  with caplog.at_level(logging.WARNING):
    for _ in range(2):
      new_spec = action_masks.with_mask(section, spec)
  assert new_spec == spec._replace(action_mask='' if expected != '' else key)
  assert len(caplog.messages) == bool(expected)
  if expected:
    assert caplog.messages[0].startswith("'action_mask' of Env-v0 ")
  section.drop_observations = (key, 'm')
  assert action_masks.with_mask(section, spec) == spec
  saved = env_specs.to_json(types.EnvSpec(new_spec, 1, 0))
  assert env_specs.from_json(saved).stream == new_spec
  del saved['action_mask']  # as in earlier releases
  assert env_specs.from_json(saved).stream == spec


@pytest.mark.parametrize(
  ('place', 'several', 'hybrid'),
  [
    *itertools.product(
      ['observation', 'info', 'processes', 'device'], [False, True], [False]
    ),
    ('observation', True, True),
    ('info', False, True),
  ],
)
def test_streams_have_masks(place, several, hybrid):
  where = 'info' if place == 'processes' else place
  section = _section(
    several=several, hybrid=hybrid, place=where, mask='action_mask'
  )
  section.processes = int(place == 'processes')
  if place == 'device':
    section = _section('make_on_device', several=several)
  spec = factory.make_spec(section)
  assert spec.action_mask == 'action_mask'
  outputs = _play(section)
  # Legal actions pay 1, others raise or pay NaN; nothing is legal at some ends.
  reward = np.concatenate([o.reward for o in outputs])
  kind = np.concatenate([o.step_type for o in outputs])
  np.testing.assert_array_equal(reward, kind != types.StepType.FIRST)
  lacking = np.concatenate([
    action_masks.lacks_choice(spec, o.observation) for o in outputs
  ])
  discount = np.concatenate([o.discount for o in outputs])
  last = kind == types.StepType.LAST
  assert lacking[last & (discount == 0)].all() and lacking.any()
  assert not lacking[last & (discount > 0)].any()
  masks = [o.observation['action_mask'] for o in outputs]
  assert set(np.unique(np.concatenate(masks)).tolist()) == {0, 1}


@pytest.mark.parametrize('name', ['make', 'make_on_device'])
def test_a_step_without_a_legal_choice_is_an_error(name):
  with pytest.raises(
    base.EnvironmentFailed, match=r'Environment \d of .*without a legal choice'
  ):
    _play(_section(name, stuck_after=2))


def test_envpool(monkeypatch):
  outputs = _play(streams.config('Play2048-v1'), 20)
  assert list(outputs[0].observation) == ['legal_action_mask', 'observation']
  section = streams.config(
    'Play2048-v1', drop_observations=('legal_action_mask',)
  )
  assert types.is_spec(factory.make_spec(section).observation)
  # Mazes may begin in a closed cell.
  section = streams.config('Maze-v0')
  _play(section, 40, 64)
  monkeypatch.setattr(action_masks, 'LENIENT', 'none')
  with pytest.raises(
    base.EnvironmentFailed, match=r'of Maze-v0 gave an action'
  ):
    _play(section, 400, 64)
  assert envpool_stream.make_spec(section).action_mask == 'action_mask'


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'place': 'none'}, r"info\['action_mask'\] of reset must .* not None"),
    ({'place': 'info', 'size': 5}, r'.* must have 4 numbers, .* not array'),
  ],
)
def test_an_info_without_the_mask_is_an_error(kwargs, message):
  section = _section(**kwargs, mask='action_mask')
  with pytest.raises(ValueError, match='action_mask=action_mask: ' + message):
    _play(section)


def test_a_dict_keeps_its_keys_beside_the_mask():
  section = streams.toy('seeded')
  section.action_mask = 'm'
  env = gymnasium_envs.load_factory(section)()
  assert isinstance(env.observation_space, spaces.Dict)
  assert list(env.observation_space) == ['inner', 'm', 'mission', 'noise']


def test_env_check_acts_legally():
  config = runs.tiny()
  config.env = _section('make')
  report = env_check.check(config, episodes=20)
  assert not report.faults and 'action_mask masks actions' in report.network
  config.env = _section('make', several=True, hybrid=True)
  assert not env_check.check(config, episodes=20).faults
  config.env = _section('make', place='info', mask='action_mask')
  assert not env_check.check(config, episodes=20).faults
  config.env = streams.config('Game2048-v1', action_mask='action_mask')
  report = env_check.check(config, episodes=1, max_steps=50)
  assert not report.faults and report.steps == 50
  config.env = _section('make', stuck_after=2)
  faults = env_check.check(config, episodes=9, max_steps=3).faults
  assert any('without a legal choice' in text for text in faults)


def test_scripted_policies_must_act_legally():
  stream = streams.make(_section('make'), 2)
  spec = stream.spec

  def illegal(output):
    return np.argmin(output.observation['action_mask'], axis=-1)

  scripted = teacher.ScriptedStream(stream, illegal, '--policy=p')
  with pytest.raises(ValueError, match=r"--policy=p: .* legal.*'action_mask'"):
    for _ in range(20):
      output = scripted.recv()
      legal = action_masks.sample(
        spec, np.random.default_rng(0), output.observation.student
      )
      scripted.send(legal, output.env_id)
  stream.close()
