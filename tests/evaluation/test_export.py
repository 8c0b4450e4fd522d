"""Tests that exported policies act as the policy, with JAX alone."""

import json
import subprocess
import sys

import numpy as np
import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import (
  dyna_q_cartpole,
  ppo_cartpole,
  ppo_pendulum,
  pqn_cartpole,
  r2d2_base,
  sac_pendulum,
)
from seedrl_jax.evaluation import policy
from tests import runs
from tests.evaluation import evaluation_runs, exported

_LENGTH, _BATCH = 6, 4
_ALLOWED = (
  '--allow_factory=tests.runs:pixels',
  '--allow_factory=tests.envs.toys:match',
)
# Evaluation environments of these agents explore a little.
_GREEDY = {'env__id': 'CartPole-v1', 'exploration__eval_epsilon': 0.0}
_RECURRENT = {'network__lstm_size': 4, 'network__use_previous_action': True}
_PIXELS = {**runs.toy('pixels'), 'network__frame_stack': 2}
_MATCH = {'env__factory': 'tests.envs.toys:match'}
_CASES = {
  'r2d2': (r2d2_base, {**_GREEDY, **_RECURRENT}),
  'pqn': (pqn_cartpole, _GREEDY),
  'dyna_q': (dyna_q_cartpole, {**_GREEDY, 'unroll_length': 1}),
  'gymnax': (ppo_cartpole, {'env__id': 'gymnax:CartPole-v1'}),
  'sac': (sac_pendulum, {'env__id': 'Pendulum-v1'}),
  'ppo_continuous': (ppo_pendulum, {'env__id': 'Pendulum-v1'}),
  'ppo_two_choices': (ppo_cartpole, {**_MATCH, **_RECURRENT}),
  'vtrace_pixels': (base_config, _PIXELS),
}


def _export(folder, case):
  """Exports an initial policy; returns observations and its actions."""
  module, values = _CASES[case]
  config = runs.tiny(module.get_config, **values)
  state = evaluation_runs.initial_state(config)
  evaluation_runs.save_states(folder / 'run', config, state)
  player, spec = policy.load(folder / 'run', allowed=_ALLOWED)
  policy.export(player, spec, folder / 'out', _BATCH)
  rng = np.random.default_rng(0)
  shape = (_LENGTH, _BATCH, *spec.observation.shape)
  observations = rng.normal(0.0, 3.0, shape).astype(np.float32)
  if spec.observation.dtype == np.uint8:
    # Few large patches of colour.
    observations = np.zeros(shape, np.uint8)
    observations[:, :, :3] = rng.integers(0, 256, (*shape[:2], 1, 6, 1))
  act = policy.Policy(player, spec).act
  return observations, np.stack([act(x) for x in observations])


@pytest.mark.parametrize('case', _CASES)
def test_acts_as_the_policy(tmp_path, case):
  observations, expected = _export(tmp_path, case)
  # Actions that never change would not show what is read.
  assert (expected != expected[0, 0]).any()
  actions = exported.play(tmp_path / 'out', observations)
  np.testing.assert_allclose(actions, expected, rtol=1e-5)


def test_acts_without_the_package(tmp_path):
  observations, expected = _export(tmp_path, 'r2d2')
  result = subprocess.run(
    [sys.executable, '-I', exported.__file__, tmp_path / 'out'],
    input=json.dumps(observations.tolist()),
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  np.testing.assert_array_equal(json.loads(result.stdout), expected)


def test_the_program_writes_it_and_says_what_is_missing(tmp_path):
  evaluation_runs.save(tmp_path, runs.tiny(env__id='CartPole-v1'), 1.0)
  result = runs.call('export', f'--workdir={tmp_path}', '--batch_size=3')
  assert result.returncode == 0, result.stderr
  assert 'export, of checkpoint 1' in result.stdout
  about = json.loads((tmp_path / 'export/policy.json').read_text())
  assert about['inputs']['observation']['shape'] == [3, 4]
  sentence = runs.refusal('export', f'--workdir={tmp_path / "nothing"}')
  assert 'holds no run (no config.json)' in sentence
