"""Tests for launch/record.py as a program."""

import json
import re
import subprocess

from seedrl_jax.configs import base as base_config
from seedrl_jax.demonstrations import folder
from tests import runs


def _record(*arguments: str) -> subprocess.CompletedProcess[str]:
  return runs.call(
    'record',
    '--config=r2d2_base',
    '--config.env.factory=tests.envs.toys:scripted',
    '--config.unroll_length=4',
    '--config.burn_in=2',
    '--config.network.lstm_size=3',
    '--config.network.head_hidden_size=4',
    *arguments,
  )


def test_flags_reach_the_recording(tmp_path):
  out = tmp_path / 'demos'
  result = _record(
    '--policy=tests.demonstrations.recording_runs:by_step',
    f'--out={out}',
    '--episodes=3',
    '--num_envs=1',
    '--min_return=10',
  )
  assert (result.returncode, result.stderr) == (0, '')
  assert re.search(
    r'kept 2 of 3 episodes, return 12\.50 ± 2\.50', result.stdout
  )
  assert f'3 sequences in {out}' in result.stdout
  manifest = folder.read_manifest(str(out))
  assert (manifest.sequences, manifest.mean_return) == (3, 12.5)


def test_a_teacher_runs_nothing_that_is_not_allowed(tmp_path):
  # The user's own configuration names its factory.
  config = base_config.get_config().to_dict() | {'agent': 'os.path'}
  config['env'] |= {'id': 'Toy-v0', 'factory': 'tests.envs.toys:scripted'}
  (tmp_path / 'config.json').write_text(json.dumps(config))
  result = _record(
    '--allow_factory=a:b',
    f'--teacher_workdir={tmp_path}',
    f'--out={tmp_path}/out',
  )
  assert result.returncode == 1
  assert result.stderr == (
    f'record: --teacher_workdir={tmp_path} asks for os.path:make_agent, which '
    'could run code from outside of this package; if you trust it, add '
    '--allow_factory=os.path:make_agent.\n'
  )
