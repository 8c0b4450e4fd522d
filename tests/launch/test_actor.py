"""Tests for launch/actor.py and launch/learner.py as programs."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest

from seedrl_jax.runtime import workdir as workdir_lib
from tests import runs

_LONG = '--config.total_env_frames=100000000'
_ENVS = '--config.actors.max_envs=8'
_OFTEN = '--config.checkpoint.every_seconds=0.1'
# A busy machine may delay one of them.
_PATIENT = '--config.actors.timeout=600'
_GATED = '../tests/launch/gated_learner.py'

# Runs a program that cannot import some packages.
_WITHOUT_JAX = """
import importlib.abc, runpy, sys


class Blocker(importlib.abc.MetaPathFinder):
  def find_spec(self, fullname, path=None, target=None):
    if fullname.partition('.')[0] in ('jax', 'jaxlib', 'flax', 'optax', 'chex'):
      raise ModuleNotFoundError(f'{fullname} is blocked', name=fullname)
    return None


sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


class Actor:
  """launch/actor.py as a process without JAX, read line by line."""

  def __init__(self, learner: str, *flags: str):
    self.process = subprocess.Popen(
      [
        *(sys.executable, '-c', _WITHOUT_JAX, runs.ROOT / 'launch/actor.py'),
        *(f'--learner={learner}', '--envs_per_group=2', *flags),
      ],
      env={**os.environ, 'PYTHONPATH': str(runs.ROOT)},
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  def wait_for(self, pattern: str) -> re.Match[str]:
    assert self.process.stdout is not None
    for line in self.process.stdout:
      if match := re.search(pattern, line):
        return match
    raise AssertionError(f'No {pattern!r}; {self.end()}')

  def end(self) -> tuple[int, str, str]:
    """Waits for the end; returns exit code, output and error."""
    # Only against a hang; a busy machine may take long.
    out, err = self.process.communicate(timeout=600)
    return self.process.returncode, out, err


def _learner(
  workdir: pathlib.Path,
  *flags: str,
  script: str = 'learner.py',
  **environment: str,
) -> runs.Program:
  flags = ('--config.env.num_envs=0', _ENVS, _PATIENT, *flags)
  return runs.Program(workdir, *flags, script=script, **environment)


def _stop(learner: runs.Program) -> None:
  learner.process.send_signal(signal.SIGTERM)
  assert learner.end()[0] == 0


@pytest.mark.parametrize('kind', ['unix', 'tcp'])
def test_two_actors_train_to_the_end(tmp_path: pathlib.Path, kind: str):
  flags = ['--config.env.id=CartPole-v1', '--config.total_env_frames=3000']
  if kind == 'tcp':
    flags.append("--config.actors.addresses=('127.0.0.1:0',)")
  learner = _learner(tmp_path, *flags, script=_GATED, WANTED_ENVS='8')
  address = learner.wait_for(r'; actors at (\S+);')[1]
  assert address.startswith({'unix': f'unix:{tmp_path}', 'tcp': '127.'}[kind])
  actors = [Actor(address) for _ in range(2)]
  code, err = learner.end()
  assert code == 0, err
  for actor in actors:
    code, out, err = actor.end()
    assert (code, err) == (0, '')
    assert 'the training has ended' in out
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'finished'
  assert summary['env_steps'] >= 3000
  assert summary['mean_return_100'] > 5
  # Four unrolls of five transitions each, some from LAST to FIRST, which are no
  # steps. The last steps were in incomplete unrolls.
  trained = 20 * summary['updates'] / summary['env_steps']
  assert 0.9 < trained < 1.2
  assert max(runs.column(tmp_path, 'actors/connected_envs')) == 8
  assert not (tmp_path / 'actors.sock').exists()


def test_an_actor_that_is_killed_is_replaced(tmp_path: pathlib.Path):
  learner = _learner(tmp_path, _LONG)
  address = learner.wait_for(r'; actors at (\S+);')[1]
  # All 8 environments, so that there is no room for a third.
  killed, other = (Actor(address) for _ in range(2))
  for actor in killed, other:
    actor.wait_for('Run ')
    actor.wait_for('Run ')
  learner.wait_for_updates()
  third = Actor(address)
  third.wait_for('There is no room')
  killed.process.kill()
  assert killed.end()[0] == -signal.SIGKILL
  third.wait_for('Run ')
  third.wait_for('Run ')
  learner.wait_for_updates(learner.wait_for_updates() + 1)
  for actor in other, third:
    actor.process.send_signal(signal.SIGTERM)
    code, out, err = actor.end()
    assert (code, err) == (0, '')
    assert 'actor: stopped' in out
  _stop(learner)


def test_a_learner_that_comes_back_gets_its_actors_back(
  tmp_path: pathlib.Path,
):
  # Before there is a learner.
  actor = Actor(f'unix:{tmp_path}/actors.sock')
  actor.wait_for('Looking for the learner')
  for end in signal.SIGKILL, signal.SIGTERM:
    learner = _learner(tmp_path, _LONG, _OFTEN)
    actor.wait_for('Run ')
    learner.wait_for_updates()
    while not any(runs.steps(tmp_path)):
      learner.wait_for_updates()
    learner.process.send_signal(end)
    learner.end()
    actor.wait_for('Looking for the learner')
  summary = runs.summary(tmp_path)
  frames = summary['env_frames'] + 200
  learner = _learner(tmp_path, f'--config.total_env_frames={frames}')
  learner.wait_for('Resuming from checkpoint')
  assert learner.end()[0] == 0
  code, out, err = actor.end()
  assert (code, err) == (0, '')
  assert 'the training has ended' in out
  assert runs.summary(tmp_path)['env_frames'] >= frames


def test_local_and_remote_environments_train_together(tmp_path: pathlib.Path):
  learner = _learner(
    tmp_path,
    *('--config.env.num_envs=4', '--config.total_env_frames=4000'),
    script=_GATED,
    WANTED_ENVS='4',
  )
  actor = Actor(learner.wait_for(r'; actors at (\S+);')[1])
  code, err = learner.end()
  assert code == 0, err
  assert actor.end()[0] == 0
  assert runs.summary(tmp_path)['status'] == 'finished'
  assert runs.column(tmp_path, 'time/env_steps')[-1] >= 4000


@pytest.mark.parametrize(
  'flags, sentence',
  [
    ([], 'actor: --learner is missing; give the address of the learner.'),
    (['--learner=x'], 'actor: --learner=x: must be unix:/path or host:port.'),
    (['--learner=a:1', '--groups=0'], 'actor: flag --groups=0: '),
    (['--learner=a:1'], 'actor: --learner=a:1: is on another machine, so '),
    (['--learner=a:1', 'x'], 'actor: unexpected arguments: x'),
    (
      ['--learner=localhost:1', '--token_file=/none'],
      'actor: --token_file=/none: No such file or directory.',
    ),
    (
      ['--learner=unix:/none/a.sock', '--patience=0.01'],
      'actor: No learner at unix:/none/a.sock for 0.01 s (unix:/none/a.sock: ',
    ),
  ],
)
def test_refuses_in_one_sentence(flags: list[str], sentence: str):
  assert runs.refusal('actor', *flags).startswith(sentence)


def test_learner_beyond_loopback_wants_tls_and_a_token(tmp_path: pathlib.Path):
  addresses = "--config.actors.addresses=('0.0.0.0:0',)"
  code, err = _learner(tmp_path, addresses).end()
  assert code == 1
  assert err.splitlines()[-1] == (
    'learner: --config.actors.addresses=0.0.0.0:0: other machines reach this '
    'address, so give --config.actors.tls_certificate and '
    '--config.actors.token_file, or allow anyone in with '
    '--config.actors.insecure.'
  )
  learner = _learner(tmp_path, addresses, '--config.actors.insecure')
  learner.wait_for('actors at 0.0.0.0:[1-9]')
  _stop(learner)


def test_environments_are_the_learners_own_by_default(tmp_path: pathlib.Path):
  learner = runs.Program(tmp_path, script='learner.py', omit=('env.num_envs',))
  assert learner.end() == (0, '')
  config = workdir_lib.Workdir(tmp_path).read_config()
  # As many as the file says.
  assert (config.env.num_envs, config.actors.max_envs) == (128, 0)


def test_a_run_without_environments_says_how_to_start_an_actor(
  tmp_path: pathlib.Path,
):
  learner = _learner(tmp_path, _LONG, script='train.py')
  address = learner.wait_for(
    r'waits for actors; start one with python launch/actor\.py '
    r'--learner=(\S+)'
  )[1]
  actor = Actor(address)
  learner.wait_for_updates()
  learner.wait_for('waits for (?!actors)')
  _stop(learner)
  actor.process.send_signal(signal.SIGTERM)
  assert actor.end()[0] == 0


def test_checkpoints_hold_no_actor(tmp_path: pathlib.Path):
  """A run with actors resumes without them, and the other way round."""
  learner = _learner(tmp_path)
  actor = Actor(learner.wait_for(r'; actors at (\S+);')[1])
  assert learner.end()[0] == 0
  assert actor.end()[0] == 0
  program = runs.Program(tmp_path, '--config.total_env_frames=800')
  program.wait_for('Resuming from checkpoint')
  assert program.end() == (0, '')
