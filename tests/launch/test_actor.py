"""Tests for launch/actor.py and launch/learner.py as programs."""

import functools
import pathlib
import signal
import sys

from tests import runs
from tests.actors import processes

_LONG = '--config.total_env_frames=100000000'
_OFTEN = '--config.checkpoint.every_seconds=0.1'

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


def _actor(address: str, *flags: str) -> processes.Process:
  """Starts an actor of four environments, without JAX."""
  return processes.Process([
    *(sys.executable, '-c', _WITHOUT_JAX, runs.ROOT / 'launch/actor.py'),
    *(f'--learner={address}', '--envs_per_group=2', *flags),
  ])


def _learner(
  workdir: pathlib.Path,
  *flags: str,
  script: str = 'learner.py',
  **environment: str,
) -> runs.Program:
  actors = (
    *('--config.env.num_envs=0', '--config.actors.max_envs=8'),
    # A busy machine may delay one of them.
    '--config.actors.timeout=600',
  )
  return runs.Program(workdir, *actors, *flags, script=script, **environment)


def test_two_actors_train_to_the_end(tmp_path: pathlib.Path):
  learner = _learner(
    tmp_path,
    *('--config.env.id=CartPole-v1', '--config.total_env_frames=3000'),
    "--config.actors.addresses=('127.0.0.1:0',)",
    # Beside the learner's own.
    '--config.env.num_envs=4',
    # Blocks of two streams.
    '--config.learner.max_lag=2',
    script='../tests/launch/gated_learner.py',
    WANTED_ENVS='8',
  )
  address = learner.wait_for(r'; actors at (127\.\S+);')[1]
  actors = [_actor(address) for _ in range(2)]
  learner.wait_for(r'Actors: \d+ environments connected \(before: 0\)\.')
  code, err = learner.end()
  assert code == 0, err
  for actor in actors:
    assert actor.end() == 0, actor.text
    assert actor.last_lines[-1] == 'actor: the training has ended.\n'
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'finished'
  assert summary['env_steps'] >= 3000
  runs.check_cartpole_episodes(tmp_path)
  # Four unrolls of five transitions each, some from LAST to FIRST, which are no
  # steps. The last steps were in incomplete unrolls.
  trained = 20 * summary['updates'] / summary['env_steps']
  assert 0.9 < trained < 1.2
  assert max(runs.column(tmp_path, 'actors/connected_envs')) == 8
  # Checkpoints hold no actor: the run resumes without any.
  frames = summary['env_frames'] + 400
  program = runs.Program(
    tmp_path,
    *('--config.env.id=CartPole-v1', f'--config.total_env_frames={frames}'),
    '--config.actors.max_envs=0',
    config=None,
  )
  program.wait_for('Resuming from checkpoint')
  assert program.end() == (0, '')


def test_an_actor_that_is_killed_is_replaced(tmp_path: pathlib.Path):
  learner = _learner(tmp_path, _LONG)
  address = learner.wait_for(r'; actors at (\S+);')[1]
  # All 8 environments, so that there is no room for a third.
  killed, other = (_actor(address) for _ in range(2))
  for actor in killed, other:
    actor.wait_for('Run ')
    actor.wait_for('Run ')
  learner.wait_for_updates()
  third = _actor(address)
  third.wait_for('There is no room')
  assert killed.end(signal.SIGKILL) == -signal.SIGKILL
  third.wait_for('Run ')
  third.wait_for('Run ')
  learner.wait_for_updates(learner.wait_for_updates() + 1)
  for actor in other, third:
    assert actor.end(signal.SIGTERM) == 0, actor.text
    assert actor.last_lines[-1] == 'actor: stopped.\n'
  learner.process.send_signal(signal.SIGTERM)
  assert learner.end()[0] == 0
  assert not (tmp_path / 'actors.sock').exists()


def test_an_actor_that_was_frozen_comes_back(tmp_path: pathlib.Path):
  # Long enough for an actor that a busy machine delays.
  learner = _learner(tmp_path, _LONG, '--config.actors.timeout=10')
  address = learner.wait_for(r'; actors at (\S+);')[1]
  frozen, other = (_actor(address) for _ in range(2))
  for actor in frozen, other:
    actor.wait_for('Run ')
    actor.wait_for('Run ')
  learner.wait_for_updates()

  def wait_for_envs(count: int) -> None:
    envs = functools.partial(runs.column, tmp_path, 'actors/connected_envs')
    while not envs() or envs()[-1] != count:
      learner.wait_for_updates()

  wait_for_envs(8)
  frozen.popen.send_signal(signal.SIGSTOP)
  wait_for_envs(4)
  learner.wait_for_updates(learner.wait_for_updates() + 1)
  frozen.popen.send_signal(signal.SIGCONT)
  frozen.wait_for('Looking for the learner')
  frozen.wait_for('Run ')
  wait_for_envs(8)
  learner.process.send_signal(signal.SIGTERM)
  assert learner.end()[0] == 0
  for actor in frozen, other:
    assert actor.end(signal.SIGTERM) == 0, actor.text


def test_a_learner_that_comes_back_gets_its_actors_back(
  tmp_path: pathlib.Path,
):
  # Before there is a learner.
  actor = _actor(f'unix:{tmp_path}/actors.sock')
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
  # Without --config it would have its own values.
  learner = _learner(tmp_path, f'--config.total_env_frames={frames}', _OFTEN)
  learner.wait_for('Resuming from checkpoint')
  assert learner.end()[0] == 0
  assert actor.end() == 0, actor.text
  assert 'the training has ended' in actor.text
  assert runs.summary(tmp_path)['env_frames'] >= frames


def test_without_jax_it_cannot_infer_locally():
  actor = _actor('localhost:1', '--inference=local')
  assert actor.end() == 1
  assert 'actor: --inference=local: jax is not installed here;' in actor.text
  assert 'Traceback' not in actor.text


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


def test_a_run_without_environments_says_how_to_start_an_actor(
  tmp_path: pathlib.Path,
):
  learner = _learner(tmp_path, _LONG, script='train.py')
  address = learner.wait_for(
    r'waits for actors; start one with seedrl actor '
    r'--learner=(\S+)'
  )[1]
  actor = _actor(address)
  learner.wait_for_updates()
  learner.wait_for('waits for (?!actors)')
  learner.process.send_signal(signal.SIGTERM)
  assert learner.end()[0] == 0
  assert actor.end(signal.SIGTERM) == 0
