"""Tests the interface for Python, in interpreters of its own."""

import pathlib
import re
import signal
import subprocess
import sys

import pytest

from tests import runs

_START = """
import seedrl_jax
config = seedrl_jax.make_config(
  'r2d2_catch', env__num_envs=4, total_env_frames=2_000, num_eval_envs=2,
  replay__min_size=8, replay__backend='embedded', log__every_seconds=0.01,
  log__writers=('csv',), seed=3, **{'network.lstm_size': 8})
"""
# As a notebook's kernel does, the environments are not even installed.
_BLOCK = """
import sys
sys.modules |= dict.fromkeys(('envpool', 'gymnasium', 'grpc'))
"""


def _start(code: str, folder: pathlib.Path) -> subprocess.Popen[str]:
  return subprocess.Popen(
    [sys.executable, '-c', code],
    cwd=folder,
    env=runs.environment_of({}),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _run(code: str, folder: pathlib.Path) -> str:
  """Returns what the code prints."""
  process = _start(code, folder)
  out, err = process.communicate()
  assert process.returncode == 0, err
  return out


@pytest.fixture(name='folder', scope='module')
def _folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Returns a folder with a finished run, `run`, and one that was stopped."""
  folder = tmp_path_factory.mktemp('api')
  out = _run(
    _START
    + """
reports = []
summary = seedrl_jax.train(config, 'run', reports.append)
assert summary.status == 'finished' and summary.env_frames >= 2_000, summary
assert summary.updates > 0 and summary.eval_mean_return is not None
assert {r.status for r in reports} == {'running'}
frames = [r.env_frames for r in reports]
assert frames == sorted(frames)
stopped = seedrl_jax.train(config, 'stopped', lambda report: False)
assert stopped.status == 'stopped' and stopped.env_frames < 2_000, stopped
resumed = seedrl_jax.train(config, 'stopped')
assert resumed.status == 'finished', resumed
print('reached the end')
""",
    folder,
  )
  assert 'reached the end' in out and 'Finished after' in out
  return folder


def test_evaluates(folder):
  out = _run(
    'import seedrl_jax\n'
    "result = seedrl_jax.evaluate('run', episodes=3, video='out.gif')\n"
    'print(result.returns.shape, result.env_id)\n',
    folder,
  )
  assert '(3,) Catch-v0' in out
  assert (folder / 'out.gif').stat().st_size > 0


def test_loads_a_policy_without_environments(folder):
  out = _run(
    _BLOCK
    + """
import numpy as np
import seedrl_jax
policy = seedrl_jax.load_policy('run')
shape = policy.spec.observation.shape
print(policy.act(np.zeros(shape)).shape)
policy.reset()
print(policy.act(np.zeros((5, *shape)), np.ones(5)).shape)
try:
  seedrl_jax.load_policy('run', step=12345)
except ValueError as e:
  print(e)
""",
    folder,
  )
  single, batch, error = out.splitlines()
  assert (single, batch) == ('()', '(5,)')
  assert 'holds no checkpoint 12345; there are: ' in error


def test_an_interrupt_stops_cleanly(tmp_path):
  code = (
    _START
    + """
config.total_env_frames = 10**9
print(seedrl_jax.train(config, 'run').status)
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
  )
  process = _start(code, tmp_path)
  assert process.stdout is not None
  assert any('updates' in line for line in process.stdout)
  process.send_signal(signal.SIGINT)
  out, err = process.communicate()
  assert process.returncode == 0, err
  assert out.splitlines()[-1] == 'stopped'
  assert runs.summary(tmp_path / 'run')['status'] == 'stopped'


# What a notebook's cell defines: no module has it.
_CELLS = """
import gymnasium, numpy as np, seedrl_jax
from gymnasium import spaces

class Count(gymnasium.Env):
  observation_space = spaces.Box(-1, 1, (2,), np.float32)
  action_space = spaces.Discrete(2)
  def __init__(self, length=5):
    self.length = length
  def reset(self, **kwargs):
    super().reset(**kwargs)
    self.steps = 0
    return np.zeros(2, np.float32), {}
  def step(self, action):
    self.steps += 1
    return np.zeros(2, np.float32), 1.0, self.steps == self.length, False, {}

values = dict(total_env_frames=8e2, env__num_envs=4, batch_size=4,
  num_eval_envs=0, unroll_length=5, log__writers=('csv',))

def train(*arguments, **more):
  return seedrl_jax.train(*arguments, **more).mean_return_100
"""


def test_environments_of_a_cell(tmp_path):
  out = _run(
    _CELLS
    + """
print('out:', train('vtrace_cartpole', 'a', env=Count, **values))
print('out:', train(
  'vtrace_cartpole', 'b', env=lambda: Count(7), env__processes=2, **values))
print('out:', train(None, 'a', total_env_frames=1_000))
result = seedrl_jax.evaluate('a', env=lambda: Count(3), episodes=2)
policy = seedrl_jax.load_policy('b')
print('out:', result.returns, policy.act(np.zeros(2)).shape)
print('out:', seedrl_jax.load_policy('b', env=Count).spec.observation.shape)
""",
    tmp_path,
  )
  lines = re.findall('^out: (.*)$', out, re.M)
  assert lines == ['5.0', '7.0', '5.0', '[3. 3.] ()', '(2,)'], out
  # Another process cannot have it, and the message names Python.
  for program in 'train', 'evaluate':
    refusal = runs.refusal(program, f'--workdir={tmp_path}/a')
    assert 'env.factory=python:Count was given from Python' in refusal


def test_errors_speak_python(tmp_path):
  out = _run(
    _CELLS
    + """
import threading
train('vtrace_cartpole', 'a', env__factory='tests.runs:pixels', **values)
lock = threading.Lock()

class Locked(Count):
  lock = lock

for call in (
  lambda: seedrl_jax.train('vtrace_cartpole', 'new', env__num_envs=0),
  lambda: seedrl_jax.train('vtrace_cartpole', 'new', env=Count()),
  lambda: seedrl_jax.train(
    'vtrace_cartpole', 'new', env=Locked, env__processes=1),
  lambda: seedrl_jax.train(None, 'new'),
  lambda: seedrl_jax.train(None, 'a'),
  lambda: seedrl_jax.train('vtrace_cartpole', 'a', seed=2),
  lambda: seedrl_jax.evaluate('a'),
  lambda: seedrl_jax.evaluate('new', max_steps=5),
  lambda: seedrl_jax.make_config('ppo_cartpole', total_env_frames=1.5),
):
  try:
    call()
  except ValueError as e:
    print('error:', e)
from tests import runs
print(seedrl_jax.evaluate('a', 1, allowed=[runs.pixels]).episodes[0].length)
print(seedrl_jax.train(None, 'a', allowed=['tests.runs:pixels']).status)
train('vtrace_cartpole', 'a', env__factory='tests.runs:pixels', **values)
""",
    tmp_path,
  )
  assert '--' not in out.replace('seedrl plot --workdir', '')
  patterns = [
    'config.env.num_envs=0: give',
    r'env=<.*Count.*>: give a class',
    'config.env.processes: python:Locked cannot be sent .*; give 0, or move',
    'workdir=.* holds no run',
    r"asks for tests.runs:pixels, .*: allowed=\['tests.runs:pixels'\]",
    r'config=vtrace_cartpole differs from the run in workdir: .* Give config='
    r'None .*\(config.',
    r"asks for tests.runs:pixels, .* add allowed=\['tests.runs:pixels'\].$",
    'workdir=.* holds no run',
    'total_env_frames=1.5: ',
  ]
  errors = re.findall('^error: (.*)$', out, re.M)
  for pattern, error in zip(patterns, errors, strict=True):
    assert re.search(pattern, error), error
  assert out.count('is finished') == 2 and '\n6\n' in out


_SCRIPT = """
from seedrl_jax.configs import base
from seedrl_jax.envs import factory
from tests.envs.toys import scripted
print('once', flush=True)
config = base.get_config()
config.env.factory = '{}:scripted'
config.env.processes = 1
try:
  stream = factory.make_stream(config.env, 1, 1, 1)
  print(stream.recv().observation.shape)
  stream.close()
except ValueError as e:
  print(e)
"""


@pytest.mark.parametrize(
  ('module', 'long', 'words'),
  [
    ('tests.envs.toys', '', r'\(1, 3\)'),
    ('tests.envs.toys', 100 * 'x', 'AF_UNIX path too long.*shorter TMPDIR'),
    ('__main__', '', r'\(1, 3\)'),
  ],
)
def test_processes_of_a_script_without_a_guard(tmp_path, module, long, words):
  script = tmp_path / 'script.py'
  script.write_text(_SCRIPT.format(module))
  folder = tmp_path / long
  folder.mkdir(exist_ok=True)
  result = subprocess.run(
    [sys.executable, script],
    env=runs.environment_of({'TMPDIR': str(folder)}),
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.stderr == ''
  assert re.fullmatch(f'once\n.*{words}.*\n', result.stdout), result.stdout


def test_importing_it_is_light():
  _run(
    'import sys, seedrl_jax\n'
    "assert 'train' in dir(seedrl_jax) and callable(seedrl_jax.make_config)\n"
    "assert 'jax' not in sys.modules and 'envpool' not in sys.modules\n",
    runs.ROOT,
  )


def test_there_is_nothing_else():
  import seedrl_jax

  with pytest.raises(AttributeError, match='has no attribute trian'):
    _ = seedrl_jax.trian


@pytest.mark.parametrize(
  ('values', 'sentence'),
  [
    ({'env__idd': 'x'}, 'env.idd: the configuration has no such key'),
    ({'seed': 'x'}, "seed='x': "),
  ],
)
def test_overrides_are_checked(values, sentence):
  from seedrl_jax import api

  with pytest.raises(ValueError, match=sentence):
    api.make_config('ppo_mujoco', **values)
