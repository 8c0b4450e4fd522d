"""Tests for launch/record.py as a program."""

import pathlib
import re
import subprocess
import sys

import pytest

from seedrl_jax.replay import demonstrations

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _record(*arguments: str) -> subprocess.CompletedProcess[str]:
  return subprocess.run(
    [
      sys.executable,
      _ROOT / 'launch/record.py',
      f'--config={_ROOT / "configs/r2d2_base.py"}',
      '--config.env.id=Toy-v0',
      '--config.env.factory=tests.envs.toys:scripted',
      '--config.unroll_length=4',
      '--config.burn_in=2',
      '--config.network.lstm_size=3',
      '--config.network.head_hidden_size=4',
      *arguments,
    ],
    env={'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )


def test_flags_reach_the_recording(tmp_path):
  out = tmp_path / 'demos'
  result = _record(
    '--policy=tests.recording_runs:by_step',
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
  manifest = demonstrations.read_manifest(str(out))
  assert (manifest.sequences, manifest.mean_return) == (3, 12.5)


@pytest.mark.parametrize(
  'flags,sentence',
  [
    (['--policy=a:b'], '--out is missing; name a folder to write'),
    (['--out=x'], 'Give either --teacher_workdir'),
    (['--out=x', '--policy=tests.nothing:b'], 'no module tests.nothing.'),
  ],
)
def test_error_is_one_sentence(flags, sentence):
  result = _record(*flags)
  assert result.returncode == 1
  assert result.stderr.startswith('record: ')
  assert sentence in result.stderr
  assert result.stderr.count('\n') == 1


def test_a_configuration_is_required():
  result = subprocess.run(
    [sys.executable, _ROOT / 'launch/record.py', '--out=x'],
    env={'PYTHONPATH': str(_ROOT), 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 1
  assert result.stderr.startswith('record: --config is missing; name a file')
