"""Tests of the suites of environments in JAX, through `EnvStream`."""

import sys

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base
from seedrl_jax.envs import factory, registry
from seedrl_jax.runtime import nest

_LIMIT = 7


def _env(name, **options):
  config = base.get_config().env
  config.id = name
  with config.options.unlocked():
    config.options.update(options)
  return config


@pytest.mark.parametrize(
  ('name', 'option', 'truncates'),
  [
    ('gymnax:CartPole-v1', 'max_steps_in_episode', True),
    ('gymnax:Pendulum-v1', 'max_steps_in_episode', True),
    ('gymnax:Breakout-MinAtar', 'max_steps_in_episode', True),
    # Without other tests: an extra of each.
    *(
      pytest.param(*parameters, marks=pytest.mark.slow)
      for parameters in [
        ('craftax:Craftax-Classic-Symbolic-v1', 'max_timesteps', True),
        ('craftax:Craftax-Classic-Pixels-v1', 'max_timesteps', True),
        ('jumanji:Maze-v0', 'time_limit', False),
        ('jumanji:PacMan-v1', 'time_limit', False),
        ('jumanji:Snake-v1', 'time_limit', False),
      ]
    ),
  ],
)
def test_a_time_limit_ends_episodes(name, option, truncates):
  """Jumanji's time limit terminates them."""
  pytest.importorskip(name.partition(':')[0])
  config = _env(name, **{option: _LIMIT})
  spec = factory.make_spec(config)
  stream = factory.make_stream(config, seed=3, num_envs=5, batch_size=5)
  rng = np.random.default_rng(0)
  outputs = []
  for _ in range(6 * _LIMIT):
    outputs.append(stream.recv())
    stream.send(spec.action.sample(rng, 5), outputs[-1].env_id)
  stream.close()
  leaves = [
    np.zeros((5, *s.shape), s.dtype) for s in nest.flatten(spec.observation)
  ]
  expected = nest.unflatten(spec.observation, leaves)
  before = outputs[0]
  assert (before.step_type == types.StepType.FIRST).all()
  ends = truncated = 0
  for output in outputs[1:]:
    chex.assert_trees_all_equal_shapes_and_dtypes(output.observation, expected)
    first = output.step_type == types.StepType.FIRST
    last = output.step_type == types.StepType.LAST
    # A reset, with the step that waits for it, and nothing else.
    was_over = before.step_type != types.StepType.MID
    assert (was_over[first]).all()
    assert (output.reward[first] == 0).all()
    assert (output.discount[~last] == 1).all()
    # It is of the episode that ended: CartPole begins within 0.05.
    if name == 'gymnax:CartPole-v1' and last.any():
      assert (np.abs(output.observation[last]) > 0.05).any(axis=1).all()
    ends += last.sum()
    truncated += (last & (output.discount == 1)).sum()
    before = output
  assert ends >= 3
  assert truncated >= 3 if truncates else truncated == 0


@pytest.mark.slow
def test_dropped_observations():
  pytest.importorskip('jumanji')
  config = _env('jumanji:Snake-v1')
  config.drop_observations = ('action_mask', 'step_count')
  assert list(factory.make_spec(config).observation) == ['grid']
  stream = factory.make_stream(config, seed=0, num_envs=2, batch_size=2)
  for _ in range(2):
    output = stream.recv()
    assert list(output.observation) == ['grid']
    stream.send(np.zeros(2, np.int32), output.env_id)
  stream.close()


@pytest.mark.parametrize(
  ('name', 'options', 'message'),
  [
    ('gymnax:Pendulom-v1', {}, r'id=gymnax:Pendulom-v1: .*gymnax:Pendulum-v1'),
    ('gymnax:CartPole-v1', {'gravi': 1}, r'options={"gravi": 1}: .*gravi'),
    *(
      pytest.param(*parameters, marks=pytest.mark.slow)
      for parameters in [
        ('craftax:Craftax-v1', {}, r'nearest are craftax:Craftax-'),
        ('jumanji:Snak-v1', {}, r'nearest are jumanji:Snake-v1'),
        ('jumanji:Snake-v1', {'time': 1}, r'options={"time": 1}: .*time'),
        ('jumanji:Connector-v3', {}, r'10 rewards per step'),
      ]
    ),
  ],
)
def test_rejected_environments(name, options, message):
  pytest.importorskip(name.partition(':')[0])
  with pytest.raises(ValueError, match=message):
    factory.make_spec(_env(name, **options))


def test_a_missing_suite(monkeypatch):
  monkeypatch.setitem(sys.modules, 'gymnax', None)
  monkeypatch.delitem(
    sys.modules, 'seedrl_jax.device_envs.gymnax_envs', raising=False
  )
  with pytest.raises(registry.MissingLibraryError, match=r'\[gymnax\]'):
    factory.make_spec(_env('gymnax:Acrobot-v1'))
