"""Tests for launch/learner.py on two hosts, processes on loopback."""

import os
import pathlib
import re
import signal

import gymnasium
import pytest

from tests import runs
from tests.actors import processes
from tests.hosts import ports

_LONG = '--config.total_env_frames=100000000'
_OFTEN = '--config.checkpoint.every_seconds=0.1'
_SELDOM = '--config.checkpoint.every_seconds=300'
_LOCAL = ('--config.env.num_envs=4',)
_RESUMED = r'Resuming from checkpoint (\d+)'
_GONE = (
  'learner: Host {} is gone ({}); start all hosts again to resume from the '
  'last checkpoint.'
)


def _host(
  index: int,
  address: str,
  workdir: pathlib.Path,
  *flags: str,
  count: int = 2,
  script: str = 'learner.py',
  config: str = 'base',
  **environment: str,
) -> runs.Program:
  return runs.Program(
    workdir,
    *(f'--coordinator={address}', f'--num_processes={count}'),
    *(f'--process_id={index}', '--config.topology.max_devices=0'),
    # A busy machine may delay one of them.
    '--config.hosts.timeout=600',
    *flags,
    script=script,
    config=config,
    XLA_FLAGS='--xla_force_host_platform_device_count=2',
    **environment,
  )


def _hosts(
  workdir: pathlib.Path, *flags: str, count: int = 2, **kwargs: str
) -> list[runs.Program]:
  """Starts hosts that share a work directory."""
  address = f'127.0.0.1:{ports.free()}' if count > 1 else ''
  return [
    _host(i, address, workdir, *flags, count=count, **kwargs)
    for i in range(count)
  ]


def _error(program: runs.Program) -> str:
  """Waits for a failure; returns the program's message."""
  code, err = program.end()
  assert code == 1, err
  assert 'Traceback' not in err
  # JAX prints lines, too, before and after.
  (line,) = [s for s in err.splitlines() if re.match(r'\w*learner: ', s)]
  return line


def _wait_for_checkpoint(
  workdir: pathlib.Path, program: runs.Program, least: int
) -> int:
  """Waits for a checkpoint of at least so many updates; returns its number."""
  while not runs.steps(workdir) or runs.steps(workdir)[-1] < least:
    program.wait_for_updates()
  return runs.steps(workdir)[-1]


def test_two_hosts_with_actors_train_to_one_summary(tmp_path: pathlib.Path):
  flags = [
    *('--config.env.id=CartPole-v1', '--config.total_env_frames=3000'),
    *('--config.epochs=1', '--config.minibatches=1'),
    '--config.normalization.observations=True',
    *('--config.env.num_envs=0', '--config.actors.max_envs=4'),
    *('--config.actors.timeout=600', '--config.num_eval_envs=2'),
    '--config.learner.max_lag=2',
    # Each update would report learning rates that differ.
    '--config.hosts.check_period=1',
  ]
  # Each host has a disk of its own.
  address = f'127.0.0.1:{ports.free()}'
  folders = [tmp_path / 'a', tmp_path / 'b']
  hosts = [
    _host(i, address, folder, *flags, config='ppo_cartpole')
    for i, folder in enumerate(folders)
  ]
  actors = [
    processes.actor(host.wait_for(r'; actors at ([^;\s]+);')[1])
    for host in hosts
  ]
  for host in hosts:
    code, err = host.end()
    assert code == 0, err
  for actor in actors:
    assert actor.end() == 0, actor.text
  summary = runs.summary(folders[0])
  assert summary['status'] == 'finished'
  assert summary['env_steps'] >= 3000
  # Four unrolls of five transitions each, two from each host.
  trained = 20 * summary['updates'] / summary['env_steps']
  assert 0.9 < trained < 1.2
  runs.check_cartpole_episodes(folders[0])
  assert summary['eval_mean_return'] is not None
  assert max(runs.column(folders[0], 'time/env_steps')) == summary['env_steps']
  assert runs.steps(folders[0])[-1] == summary['updates']
  # Host 1 leaves only its replay and the lock's file.
  left = {path.name for path in (folders[1] / 'hosts/1').iterdir()}
  assert left == {'replay', 'run.lock'}
  assert 'host 0 has the summary' in hosts[1].lines[-1]
  assert not any('frames/s' in line for line in hosts[1].lines)


@pytest.mark.slow
def test_two_hosts_with_environments_in_jax(tmp_path: pathlib.Path):
  hosts = _hosts(
    tmp_path,
    *('--config.env.id=gymnax:CartPole-v1', '--config.replay.backend=device'),
    *('--config.env.num_envs=8', '--config.num_eval_envs=2'),
    '--config.total_env_frames=3000',
  )
  for host in hosts:
    code, err = host.end()
    assert code == 0, err
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'finished' and summary['env_steps'] >= 3000
  assert summary['updates'] and summary['eval_mean_return'] is not None
  runs.check_cartpole_episodes(tmp_path)


def test_hosts_that_die_go_on_from_the_checkpoint(tmp_path: pathlib.Path):
  step = updates = 0
  for killed in 0, 1:
    hosts = _hosts(tmp_path, *_LOCAL, _LONG, _OFTEN)
    if step:
      updates = int(hosts[0].wait_for(_RESUMED)[1])
      assert updates >= step
    # The first report may come before the first update.
    hosts[0].wait_for_updates(updates + 1)
    step = _wait_for_checkpoint(tmp_path, hosts[0], updates + 1)
    hosts[killed].process.kill()
    assert _error(hosts[1 - killed]) == _GONE.format(
      killed, 'its connection was closed'
    )
    assert hosts[killed].end()[0] == -signal.SIGKILL
  # Host 0 goes on alone; then a signal to either stops both.
  for count, signalled in (1, 0), (2, 1):
    hosts = _hosts(tmp_path, *_LOCAL, _LONG, _SELDOM, count=count)
    updates = int(hosts[0].wait_for(_RESUMED)[1])
    assert updates >= step
    hosts[0].wait_for_updates(updates + 1)
    hosts[signalled].process.send_signal(signal.SIGTERM)
    for host in hosts:
      assert host.end()[0] == 0
    summary = runs.summary(tmp_path)
    assert summary['status'] == 'stopped'
    step = runs.steps(tmp_path)[-1]
    assert step == summary['updates'] > updates
  # The checkpoint of host 0 alone had nothing for host 1.
  assert any('The replay starts empty' in line for line in hosts[1].lines)
  assert (tmp_path / 'hosts/1/replay' / str(step)).exists()


@pytest.mark.parametrize('frozen', [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_host_that_freezes_ends_the_other(
  tmp_path: pathlib.Path, frozen: int
):
  # Long enough for a host that a busy machine delays.
  hosts = _hosts(tmp_path, *_LOCAL, _LONG, '--config.hosts.timeout=10')
  hosts[0].wait_for_updates()
  hosts[frozen].process.send_signal(signal.SIGSTOP)
  sentence = _GONE.format(frozen, 'it was silent for 10 s')
  assert _error(hosts[1 - frozen]) == sentence


def test_parameters_that_differ_stop_all(tmp_path: pathlib.Path):
  hosts = _hosts(
    tmp_path,
    *(*_LOCAL, _LONG, '--config.hosts.check_period=10'),
    script='../tests/launch/spoiled_learner.py',
  )
  said = (
    'After update 10 the parameters of host 1 are not those of host 0; start '
    'all hosts again to resume from the last checkpoint.'
  )
  errors = [_error(host) for host in hosts]
  # Both detect it; the slower one may report the other's failure instead.
  assert f'spoiled_learner: {said}' in errors
  assert all(said in error for error in errors)
  assert said in runs.summary(tmp_path)['status']
  assert not runs.steps(tmp_path)


def pixels() -> gymnasium.Env:
  """Returns an environment that fails after BAD_AFTER steps, if set."""
  after = int(os.environ.get('BAD_AFTER', 1 << 30))
  return runs.Pixels(bad_after=after, failure='raise')


def test_an_environment_that_fails_stops_all(tmp_path: pathlib.Path):
  address = f'127.0.0.1:{ports.free()}'
  flags = (
    *('--config.env.factory=tests.launch.test_hosts:pixels', *_LOCAL, _LONG),
    '--config.network.torso=mlp',
  )
  hosts = [
    _host(0, address, tmp_path, *flags),
    _host(1, address, tmp_path, *flags, BAD_AFTER='60'),
  ]
  reason = 'Host 1 has failed (OSError: The toy is broken.)'
  assert _error(hosts[0]).startswith(f'learner: {reason}')
  code, err = hosts[1].end()
  assert code == 1 and 'Thread inference-0 failed.' in err
  # What they had learned was sound.
  summary = runs.summary(tmp_path)
  assert reason in summary['status']
  assert runs.steps(tmp_path)[-1] == summary['updates']


def test_hosts_that_differ_are_refused(tmp_path: pathlib.Path):
  address = f'127.0.0.1:{ports.free()}'
  hosts = [
    _host(i, address, tmp_path, *_LOCAL, f'--config.unroll_length={5 + i}')
    for i in range(2)
  ]
  for host in hosts:
    assert _error(host) == (
      'learner: Host 1 has --config.unroll_length=6 and host 0 '
      '--config.unroll_length=5; all hosts must be alike.'
    )
  assert not (tmp_path / 'config.json').exists()
