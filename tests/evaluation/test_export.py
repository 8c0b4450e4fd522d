"""Tests that exported policies act as the policy, with JAX alone."""

import json
import subprocess
import sys

import numpy as np
import pytest

from seedrl_jax.configs import ppo_pendulum, r2d2_base
from seedrl_jax.evaluation import export, policy
from tests import runs
from tests.evaluation import evaluation_runs

_BATCH = 2
# Nothing but what JAX needs; reads two arrays, prints actions.
_USE = """
import json, pathlib, sys
sys.modules |= dict.fromkeys(('seedrl_jax', 'flax', 'envpool'))
import jax
from jax import export
import numpy as np

folder = pathlib.Path(sys.argv[1])
function = export.deserialize((folder / 'policy.stablehlo').read_bytes())
about = json.loads((folder / 'policy.json').read_text())
zeros = lambda spec: np.zeros(spec['shape'], spec['dtype'])
inputs = {name: zeros(spec) for name, spec in about['inputs'].items()}
state = [zeros(spec) for spec in about['state']]
inputs['first'][:] = True
for observation in json.load(sys.stdin):
  inputs['observation'] = np.array(observation, np.float32)
  action, state = function.call(inputs, state)
  inputs['first'] = np.zeros_like(inputs['first'])
  assert {'shape': list(action.shape), 'dtype': action.dtype.name} == (
    about['action'])
  print(json.dumps(np.asarray(action).tolist()))
"""


@pytest.mark.parametrize(
  ('make', 'values'),
  [
    (
      r2d2_base.get_config,
      {
        'network__lstm_size': 4,
        'network__use_previous_action': True,
        'exploration__eval_epsilon': 0.0,
      },
    ),
    (ppo_pendulum.get_config, {'env__id': 'Pendulum-v1'}),
  ],
)
def test_acts_without_the_package_as_the_policy(tmp_path, make, values):
  config = runs.tiny(make, **{'env__id': 'CartPole-v1', **values})
  state = evaluation_runs.initial_state(config)
  evaluation_runs.save_states(tmp_path / 'run', config, state)
  player, spec = policy.load(tmp_path / 'run')
  export.export(player, spec, tmp_path / 'out', _BATCH)
  shape = (3, _BATCH, *spec.observation.shape)
  observations = np.random.default_rng(0).normal(size=shape)
  result = subprocess.run(
    [sys.executable, '-I', '-c', _USE, tmp_path / 'out'],
    input=json.dumps(observations.tolist()),
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 0, result.stderr
  own = policy.Policy(player, spec)
  wanted = [own.act(observation) for observation in observations]
  found = [json.loads(line) for line in result.stdout.splitlines()]
  np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_program_writes_it_and_says_what_is_missing(tmp_path):
  evaluation_runs.save(tmp_path, runs.tiny(env__id='CartPole-v1'), 1.0)
  result = runs.call('export', f'--workdir={tmp_path}', '--batch_size=3')
  assert result.returncode == 0, result.stderr
  assert 'export, of checkpoint 1' in result.stdout
  about = json.loads((tmp_path / 'export/policy.json').read_text())
  assert about['inputs']['observation']['shape'] == [3, 4]
  sentence = runs.refusal('export', f'--workdir={tmp_path / "nothing"}')
  assert 'holds no run (no config.json)' in sentence
