"""Tests for launch/actor.py --inference=local, with real Reverb servers."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import r2d2_catch
from seedrl_jax.lab.benchmarks import whole
from seedrl_jax.replay.reverb.client import store as reverb_store
from tests import runs
from tests.actors import processes


def _actor(address: str, *flags: str) -> processes.Process:
  command = [
    *(sys.executable, runs.ROOT / 'launch/actor.py', f'--learner={address}'),
    *('--inference=local', '--envs_per_group=2', *flags),
  ]
  # There is no TPU: the actor must use the CPU whatever the variable says.
  return processes.Process(command, JAX_PLATFORMS='tpu')


def _wait_until(reached: Callable[[], bool], actor: processes.Process) -> None:
  """Waits for a condition; the actor must not end before."""
  while not reached():
    with contextlib.suppress(subprocess.TimeoutExpired):
      actor.popen.wait(0.05)
    assert actor.is_alive, actor.text


@pytest.mark.usefixtures('server_python')
def test_both_kinds_train_to_the_end_though_one_is_killed(
  tmp_path: pathlib.Path,
):
  learner = runs.Program(
    tmp_path,
    *('--config.env.id=CartPole-v1', '--config.total_env_frames=6000'),
    *('--config.env.num_envs=0', '--config.actors.max_envs=8'),
    '--config.replay.backend=auto',
    '--config.actors.local_inference=True',
    # A busy machine may delay any of them.
    *('--config.actors.timeout=600', '--config.replay.patience=600'),
    script='../tests/launch/gated_learner.py',
    WANTED_ENVS='8',
  )
  address = learner.wait_for(r'; actors at (\S+);')[1]
  killed = _actor(address)
  killed.wait_for('Run ')
  learner.wait_for_updates()
  killed.end(signal.SIGKILL)
  actors = [_actor(address), _actor(address, '--inference=central')]
  code, err = learner.end()
  assert code == 0, err
  for actor in actors:
    assert actor.end() == 0, actor.text
    assert 'the training has ended' in actor.text
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'finished'
  assert summary['env_steps'] >= 6000
  runs.check_cartpole_episodes(tmp_path)
  # Four unrolls of five transitions each; the last ones were in flight.
  trained = 20 * summary['updates'] / summary['env_steps']
  assert 0.8 < trained < 1.2
  assert max(runs.column(tmp_path, 'actors/connected_envs')) == 8
  assert runs.column(tmp_path, 'actors/store_bytes')[-1] > 0
  assert summary['policy_lag_mean'] > 0


def _config(make=base_config.get_config):
  return runs.tiny(
    make,
    env__num_envs=0,
    actors__max_envs=8,
    actors__timeout=600.0,
    total_env_frames=10**9,
    replay__backend='reverb',
    replay__patience=600.0,
  )


@pytest.mark.usefixtures('server_python')
def test_an_actor_waits_for_a_full_queue_and_can_be_stopped(
  tmp_path: pathlib.Path,
):
  # A learner that never trains.
  system = runs.Run(_config(), tmp_path).system
  serving = system.parts.actors
  assert serving is not None
  actor = _actor(serving.addresses[0])
  try:
    # Until it takes no step in a second of waiting for the full queue; earlier
    # it may wait for a slow server.
    steps = -1
    while (before := serving.reported).env_steps > steps:
      steps, goal = before.env_steps, before.store_wait + 1.0
      _wait_until(lambda goal=goal: serving.reported.store_wait > goal, actor)
    assert steps > 0
    assert actor.end(signal.SIGTERM) == 0, actor.text
  finally:
    actor.popen.kill()
    system.parts.close()


@pytest.mark.usefixtures('server_python')
@pytest.mark.parametrize(
  'make',
  [
    base_config.get_config,
    pytest.param(r2d2_catch.get_config, marks=pytest.mark.slow),
  ],
)
def test_actors_go_on_when_the_reverb_server_was_lost(make):
  with whole.running(_config(make)) as (run, training):
    serving, store = run.parts.actors, run.parts.store
    assert serving is not None
    assert isinstance(store, reverb_store.ReverbStore)
    actor = _actor(serving.addresses[0])
    counters = run.parts.learner.counters
    for is_lost in False, True:
      if is_lost:
        os.kill(store.location._server._process.pid, signal.SIGKILL)
      goal = counters.updates + 20
      _wait_until(
        lambda goal=goal: counters.updates > goal or training.done(),
        actor,
      )
    assert actor.end(signal.SIGTERM) == 0, actor.text
