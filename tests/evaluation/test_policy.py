"""Tests that a policy acts as its agent does, with its state."""

import dataclasses
import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base as agents
from seedrl_jax.configs import ppo_pendulum, r2d2_base
from seedrl_jax.evaluation import playing
from seedrl_jax.evaluation import policy as policy_lib
from tests import runs
from tests.evaluation import evaluation_runs

_STEPS, _BATCH = 5, 3
_SCALAR = types.ArraySpec((), np.dtype(np.float32))
_VECTOR = types.ArraySpec((2,), np.dtype(np.float32))
_IMAGE = types.ArraySpec((8, 8, 3), np.dtype(np.uint8))
_CELL = types.ArraySpec((), np.dtype(np.int32), (range(1, 5),))
_DISCRETE = types.discrete(3)
_BOX = types.ActionSpec((2,), np.dtype('f4'), (-1e-3, -1e-3), (1e-3, 1e-3))
_RECURRENT = {
  'network__lstm_size': 4,
  'network__use_previous_action': True,
  'network__frame_stack': 2,
}


def _make(
  make, action, observation=_VECTOR, sample=False, parts=None, **values
):
  spec = types.EnvSpec(
    types.StreamSpec(observation, action, 1, 'Toy-v0', parts), 4, 2
  )
  agent = agents.load_agent(runs.tiny(make, **values), spec)
  state = agent.init(jax.random.PRNGKey(1))
  # Larger ones, so that actions depend on observations and leave the bounds.
  params = jax.tree.map(
    lambda x: 10 * x if jnp.issubdtype(x.dtype, jnp.floating) else x,
    agent.acting_params(state),
  )
  player = playing.Player(agent, params, 7)
  return player, policy_lib.Policy(player, spec, sample)


def _expected(player, spec, observations, rewards, first):
  """Steps the agent by hand; returns actions, not clipped `[T, B, ...]`."""
  core = player.agent.initial_core(_BATCH)
  previous = np.zeros((_BATCH, *spec.action.shape), spec.action.dtype)
  actions = []
  for observation, reward, starts in zip(
    observations, rewards, first, strict=True
  ):
    previous[starts] = 0
    step = types.AgentInput(
      observation, np.where(starts, 0, reward), previous.copy(), starts
    )
    ids = np.full(_BATCH, spec.num_envs, np.int32)
    key = jax.random.PRNGKey(0)
    output, core = player.agent.act(player.params, key, step, core, ids)
    previous = np.array(output.action)
    actions.append(previous.copy())
  return np.stack(actions)


@pytest.mark.parametrize(
  ('make', 'action', 'values'),
  [
    (r2d2_base.get_config, _DISCRETE, {**_RECURRENT, 'burn_in': 0}),
    # Normalised by larger statistics, actions would not leave the bounds.
    (ppo_pendulum.get_config, _BOX, {'normalization__observations': False}),
  ],
)
def test_a_batch_acts_as_stepping_the_agent_by_hand(make, action, values):
  if 'burn_in' in values:
    # No chance, whose keys differ.
    values = {**values, 'exploration__eval_epsilon': 0.0}
  player, policy = _make(make, action, **values)
  rng = np.random.default_rng(0)
  observations = rng.normal(size=(_STEPS, _BATCH, 2)).astype(np.float32)
  rewards = rng.normal(size=(_STEPS, _BATCH)).astype(np.float32)
  first = np.zeros((_STEPS, _BATCH), bool)
  first[0], first[3, 1] = True, True
  actions = []
  for t in range(_STEPS):
    if t == 3:
      policy.reset([1])
    actions.append(policy.act(observations[t], rewards[t]))
  wanted = _expected(player, policy.spec, observations, rewards, first)
  if not action.is_discrete:
    assert (np.abs(wanted) > 1e-3).any()
    wanted = np.clip(wanted, -1e-3, 1e-3)
  np.testing.assert_allclose(np.stack(actions), wanted, rtol=1e-5)
  # A row alone acts alike.
  policy.reset()
  alone = [
    policy.act(observations[t, 0].astype(np.float64), rewards[t, 0])
    for t in range(_STEPS)
  ]
  np.testing.assert_allclose(np.stack(alone), wanted[:, 0], rtol=1e-5)
  assert alone[0].shape == action.shape and alone[0].dtype == action.dtype


def test_state_is_forgotten_at_a_reset_only():
  _, policy = _make(r2d2_base.get_config, _DISCRETE, burn_in=0, **_RECURRENT)
  states = []
  for reset in (True, False, True):
    if reset:
      policy.reset()
    policy.act(np.ones(2), 0.5)
    states.append(np.asarray(jax.tree.leaves(policy._state.core)[-1]))
  assert (states[0] != states[1]).any()
  np.testing.assert_array_equal(states[0], states[2])


def test_samples_as_training_does():
  _, greedy = _make(runs.base_config.get_config, _DISCRETE)
  _, sampling = _make(runs.base_config.get_config, _DISCRETE, sample=True)
  observation = np.zeros((64, 2))
  assert len(set(greedy.act(observation).tolist())) == 1
  assert len(set(sampling.act(observation).tolist())) == 3


_PARTS = {'angle': types.ArraySpec((1,), np.dtype('f4')), 'speed': _SCALAR}
_FRAME = np.zeros((8, 8, 3), np.uint8)
_INTEGERS = np.full((8, 8, 3), 255)


@pytest.mark.parametrize(
  ('spec', 'parts', 'observation'),
  [
    (_VECTOR, None, [1, 2.0]),
    (_VECTOR, _PARTS, {'speed': np.float64(2), 'angle': [1.0], 'more': 0}),
    (_VECTOR, _PARTS, np.array([1.0, 2.0])),
    # Of an earlier release.
    (_VECTOR, None, {'speed': np.float64(2), 'angle': np.array([1.0])}),
    ({'image': _IMAGE, 'cell': _CELL}, None, {'image': _INTEGERS, 'cell': 4}),
    ({'image': _IMAGE}, None, {'image': _INTEGERS.tolist()}),
    ({1: _VECTOR, 0: _IMAGE}, None, {0: _FRAME, 1: [1.0, 2.0], 'more': 'go'}),
  ],
)
def test_takes_what_an_environment_gives_alone_or_in_a_batch(
  spec, parts, observation
):
  _, policy = _make(runs.base_config.get_config, _DISCRETE, spec, parts=parts)
  single = policy.act(observation)
  assert single.shape == ()
  policy.reset()
  batch: Any = [observation] * 3
  if isinstance(observation, dict):
    batch = {key: [x] * 3 for key, x in observation.items()}
  np.testing.assert_array_equal(policy.act(batch), [single] * 3)


@pytest.mark.parametrize(
  ('spec', 'parts', 'observation', 'words'),
  [
    (_VECTOR, None, np.zeros(3), r'shape \(3,\) instead of \(2,\)'),
    (_VECTOR, None, [np.zeros(2), np.zeros(3)], 'not an array'),
    (_VECTOR, None, np.zeros((0, 2)), 'the batch is empty'),
    (_VECTOR, None, [], r'shape \(0,\)'),
    (_VECTOR, None, [0, np.nan], 'is not finite'),
    (_VECTOR, None, [0, 1e39], 'is not finite'),
    (_VECTOR, None, [0, None], 'dtype object'),
    (_VECTOR, None, None, r'shape \(\)'),
    (_VECTOR, None, [0, 1j], 'dtype complex128'),
    (_VECTOR, None, {'angle': [1.0]}, r'shape \(1, 1\) instead'),
    (_VECTOR, None, {'angle': None}, r'shape \(\)'),
    ({'image': _IMAGE}, None, {'image': _INTEGERS + 1}, "'image' with 256"),
    (_CELL, None, 99, 'the caller gave an observation with 99, which is'),
    ({'c': _CELL}, None, {'c': [1, 0]}, "'c' with 0, which is not from 1 to 4"),
    (_VECTOR, _PARTS, {'angle': [1.0], 'velocity': 2.0}, "the key 'speed'"),
    (
      _VECTOR,
      _PARTS,
      {'angle': [1.0, 2.0]},
      r"'angle' of shape",
    ),
    (
      {'image': _IMAGE},
      None,
      {'image': _FRAME / 255},
      "'image' of dtype float",
    ),
    ({'image': _IMAGE}, None, {}, "without the key 'image'"),
  ],
)
@pytest.mark.filterwarnings('ignore:overflow')
def test_refuses_what_would_not_pass_in_training(
  spec, parts, observation, words
):
  _, policy = _make(runs.base_config.get_config, _DISCRETE, spec, parts=parts)
  with pytest.raises(ValueError, match=f'^Policy.act: .*{words}'):
    policy.act(observation)


@pytest.mark.parametrize(
  ('reward', 'words'),
  [
    (np.nan, 'reward is not'),
    (None, 'reward is not'),
    ([1.0, 2.0], 'broadcast'),
  ],
)
def test_refuses_other_rewards(reward, words):
  _, policy = _make(runs.base_config.get_config, _DISCRETE)
  with pytest.raises(ValueError, match=rf'^Policy\.act: .*{words}'):
    policy.act(np.zeros(2), reward)


def test_a_batch_of_another_size_needs_a_reset():
  _, policy = _make(runs.base_config.get_config, _DISCRETE)
  policy.act(np.zeros((4, 2)))
  with pytest.raises(ValueError, match=r'2 observations, .* 4; call reset'):
    policy.act(np.zeros((2, 2)))
  policy.reset()
  assert policy.act(np.zeros((2, 2))).shape == (2,)


def test_loads_a_checkpoint_and_refuses_foreign_code(tmp_path):
  run = evaluation_runs.config()
  evaluation_runs.save(tmp_path, run, 1.0, -1.0)
  player, spec = policy_lib.load(tmp_path, None, evaluation_runs.ALLOWED)
  assert policy_lib.Policy(player, spec).checkpoint == 2
  player, spec = policy_lib.load(tmp_path, 1, evaluation_runs.ALLOWED)
  # Positive preferences are for the last action.
  assert policy_lib.Policy(player, spec).act(np.zeros(2)) == 2
  with pytest.raises(ValueError, match='add --allow_factory=tests'):
    policy_lib.load(tmp_path)
  assert dataclasses.is_dataclass(player.agent)


def test_loads_a_run_of_a_release_without_categories(tmp_path):
  run = evaluation_runs.config()
  del run.network['categories']
  evaluation_runs.save(tmp_path, run, 1.0)
  player, _ = policy_lib.load(tmp_path, None, evaluation_runs.ALLOWED)
  assert player.version == 1


@pytest.mark.parametrize(
  ('key', 'value', 'sentence'),
  [
    ('network.frame_stack', 10**9, 'give 1 to 1,000'),
    ('network.width', None, 'width is missing'),
    ('loss.lambda_', 'x', 'give 0 to 1.'),
    ('loss.lambda_', None, 'lambda_ is missing'),
    ('agent', 'ppo', 'epochs is missing, which --config.agent=ppo needs'),
  ],
)
def test_a_foreign_config_is_refused_in_a_sentence(
  tmp_path, key, value, sentence
):
  evaluation_runs.save(tmp_path, evaluation_runs.config(), 1.0)
  path = tmp_path / 'config.json'
  config = json.loads(path.read_text())
  *sections, name = key.split('.')
  section = config[sections[0]] if sections else config
  del section[name]
  if value is not None:
    section[name] = value
  path.write_text(json.dumps(config))
  with pytest.raises(ValueError, match=rf'config\.json.*{re.escape(sentence)}'):
    policy_lib.load(tmp_path, None, evaluation_runs.ALLOWED)
