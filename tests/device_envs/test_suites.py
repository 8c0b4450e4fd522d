"""Tests of the suites of environments in JAX, through `EnvStream`."""

import sys

import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base
from seedrl_jax.envs import factory, registry

_LIMIT = 7


def _env(name, **options):
  config = base.get_config().env
  config.id = name
  with config.options.unlocked():
    config.options.update(options)
  return config


@pytest.mark.parametrize(
  'name', ['CartPole-v1', 'Pendulum-v1', 'Breakout-MinAtar']
)
def test_a_time_limit_truncates(name):
  config = _env(f'gymnax:{name}', max_steps_in_episode=_LIMIT)
  spec = factory.make_spec(config)
  stream = factory.make_stream(config, seed=3, num_envs=5, batch_size=5)
  rng = np.random.default_rng(0)
  outputs = []
  for _ in range(3 * _LIMIT):
    outputs.append(stream.recv())
    stream.send(spec.action.sample(rng, 5), outputs[-1].env_id)
  stream.close()
  before = outputs[0]
  assert (before.step_type == types.StepType.FIRST).all()
  truncated = 0
  for output in outputs[1:]:
    assert output.observation.shape == (5, *spec.observation.shape)
    assert output.observation.dtype == spec.observation.dtype
    first = output.step_type == types.StepType.FIRST
    last = output.step_type == types.StepType.LAST
    # A reset, with the step that waits for it, and nothing else.
    was_over = before.step_type != types.StepType.MID
    assert (was_over[first]).all()
    assert (output.reward[first] == 0).all()
    assert (output.discount[~last] == 1).all()
    # It is of the episode that ended: CartPole begins within 0.05.
    if name == 'CartPole-v1' and last.any():
      assert (np.abs(output.observation[last]) > 0.05).any(axis=1).all()
    truncated += int((last & (output.discount == 1)).sum())
    before = output
  assert truncated >= 3


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('gymnax:Pendulom-v1', {}, r'id=gymnax:Pendulom-v1: .*gymnax:Pendulum-v1'),
    ('gymnax:CartPole-v1', {'gravi': 1}, r'options\.gravi: .* gravity'),
  ],
)
def test_misspelt_names(name, options, message):
  with pytest.raises(ValueError, match=message):
    factory.make_spec(_env(name, **options))


def test_a_missing_suite(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gymnax', None)
  monkeypatch.delitem(
    sys.modules, 'seedrl_jax.device_envs.gymnax_envs', raising=False
  )
  with pytest.raises(registry.MissingLibraryError, match=r'\[gymnax\]'):
    factory.make_spec(_env('gymnax:Acrobot-v1'))
