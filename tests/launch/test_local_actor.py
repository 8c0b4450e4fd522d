"""Tests for launch/actor.py --inference=local, with real Reverb servers."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from configs import r2d2_catch
from seedrl_jax.benchmarks import whole
from seedrl_jax.replay import table_configs
from seedrl_jax.replay.reverb.client import store as reverb_store
from tests import runs
from tests.actors import processes

_REVERB = '--config.replay.backend=reverb'
_LONG = '--config.total_env_frames=100000000'
_OFTEN = '--config.checkpoint.every_seconds=0.1'
# A busy machine may delay any of them.
_PATIENT = ('--config.actors.timeout=600', '--config.replay.patience=600')


def _actor(address: str, *flags: str) -> processes.Process:
  command = [
    *(sys.executable, runs.ROOT / 'launch/actor.py', f'--learner={address}'),
    *('--inference=local', '--envs_per_group=2', *flags),
  ]
  # There is no TPU: the actor must use the CPU whatever the variable says.
  return processes.Process(command, JAX_PLATFORMS='tpu')


def _learner(
  workdir: pathlib.Path,
  *flags: str,
  script: str = 'learner.py',
  **environment: str,
) -> runs.Program:
  places = ('--config.env.num_envs=0', '--config.actors.max_envs=8')
  return runs.Program(
    workdir, *places, *_PATIENT, *flags, script=script, **environment
  )


def _stop(learner: runs.Program) -> None:
  learner.process.send_signal(signal.SIGTERM)
  assert learner.end()[0] == 0


def _wait_until(reached: Callable[[], bool], actor: processes.Process) -> None:
  """Waits for a condition; the actor must not end before."""
  while not reached():
    with contextlib.suppress(subprocess.TimeoutExpired):
      actor.popen.wait(0.05)
    assert actor.is_alive, actor.text


@pytest.mark.usefixtures('server_python')
def test_two_actors_train_to_the_end(tmp_path: pathlib.Path):
  flags = [
    *('--config.env.id=CartPole-v1', '--config.total_env_frames=6000'),
    '--config.replay.backend=auto',
    '--config.actors.local_inference=True',
  ]
  learner = _learner(
    tmp_path,
    *flags,
    script='../tests/launch/gated_learner.py',
    WANTED_ENVS='8',
  )
  address = learner.wait_for(r'; actors at (\S+);')[1]
  actors = [_actor(address) for _ in range(2)]
  code, err = learner.end()
  assert code == 0, err
  for actor in actors:
    assert actor.end() == 0, actor.text
    assert 'the training has ended; at most' in actor.text
  summary = runs.summary(tmp_path)
  assert summary['status'] == 'finished'
  assert summary['env_steps'] >= 6000
  assert summary['mean_return_100'] > 5
  # Four unrolls of five transitions each; the last ones were in flight.
  trained = 20 * summary['updates'] / summary['env_steps']
  assert 0.8 < trained < 1.2
  assert max(runs.column(tmp_path, 'actors/connected_envs')) == 8
  assert runs.column(tmp_path, 'actors/store_bytes')[-1] > 0
  assert summary['policy_lag_mean'] > 0


@pytest.mark.usefixtures('server_python')
def test_both_kinds_train_together_and_one_is_killed(tmp_path: pathlib.Path):
  learner = _learner(tmp_path, _LONG, _REVERB)
  address = learner.wait_for(r'; actors at (\S+);')[1]
  killed = _actor(address)
  central = _actor(address, '--inference=central')
  for actor in killed, central:
    actor.wait_for('Run ')
  learner.wait_for_updates()
  killed.end(signal.SIGKILL)
  third = _actor(address)
  third.wait_for('Run ')
  learner.wait_for_updates(learner.wait_for_updates() + 100)
  for actor in central, third:
    assert actor.end(signal.SIGTERM) == 0, actor.text
    assert 'actor: stopped' in actor.text
  _stop(learner)


@pytest.mark.usefixtures('server_python')
def test_a_learner_that_comes_back_gets_its_actors_back(
  tmp_path: pathlib.Path,
):
  # Before there is a learner.
  actor = _actor(f'unix:{tmp_path}/actors.sock')
  actor.wait_for('Looking for the learner')
  learner = _learner(tmp_path, _LONG, _OFTEN, _REVERB)
  actor.wait_for('Run ')
  learner.wait_for_updates()
  while not any(runs.steps(tmp_path)):
    learner.wait_for_updates()
  learner.process.send_signal(signal.SIGKILL)
  learner.end()
  actor.wait_for('Looking for the learner')
  frames = 2000 + int(runs.column(tmp_path, 'time/env_frames')[-1])
  learner = _learner(tmp_path, f'--config.total_env_frames={frames}', _REVERB)
  learner.wait_for('Resuming from checkpoint')
  assert learner.end()[0] == 0
  assert actor.end() == 0, actor.text
  assert 'the training has ended' in actor.text
  assert runs.summary(tmp_path)['env_frames'] >= frames


def test_the_embedded_store_is_refused_on_both_sides(tmp_path: pathlib.Path):
  learner = _learner(tmp_path, _LONG)
  actor = _actor(learner.wait_for(r'; actors at (\S+);')[1])
  assert actor.end() == 1
  sentence = 'start it with --config.actors.local_inference=True'
  assert sentence in actor.text
  assert 'Traceback' not in actor.text
  learner.process.send_signal(signal.SIGTERM)
  code, err = learner.end()
  assert code == 0
  assert sentence in err


def _config(**values: object):
  return runs.tiny(
    env__num_envs=0,
    actors__max_envs=8,
    actors__timeout=600.0,
    total_env_frames=10**9,
    replay__backend='reverb',
    replay__patience=600.0,
    **values,
  )


@pytest.mark.usefixtures('server_python')
def test_r2d2_trains_with_actors_that_act_themselves():
  config = r2d2_catch.get_config()
  runs.set_keys(
    config,
    env__num_envs=0,
    actors__max_envs=8,
    actors__timeout=600.0,
    num_eval_envs=0,
    network__lstm_size=4,
    replay__backend='reverb',
    replay__patience=600.0,
    replay__min_size=20,
    replay__max_size=200,
    total_env_frames=3000,
    topology__max_devices=1,
  )
  with whole.running(config) as (run, thread):
    serving = run.parts.actors
    assert serving is not None
    actor = _actor(serving.addresses[0])
    thread.join()
    assert actor.end() == 0, actor.text
    assert 'the training has ended' in actor.text
    table = run.parts.store.info()[table_configs.TABLE]
  assert run.parts.learner.counters.updates > 10
  # Eight times, but for a batch or two.
  assert table.samples_per_insert == pytest.approx(8, rel=0.2)


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
def test_actors_go_on_when_the_reverb_server_was_lost():
  with whole.running(_config()) as (run, thread):
    serving, store = run.parts.actors, run.parts.store
    assert serving is not None
    assert isinstance(store, reverb_store.ReverbStore)
    actor = _actor(serving.addresses[0])
    counters = run.parts.learner.counters
    for _ in range(2):
      goal = counters.updates + 20
      _wait_until(
        lambda goal=goal: counters.updates > goal or not thread.is_alive(),
        actor,
      )
      os.kill(store.location.pid, signal.SIGKILL)
    goal = counters.updates + 20
    _wait_until(lambda: counters.updates > goal or not thread.is_alive(), actor)
    assert actor.end(signal.SIGTERM) == 0, actor.text


def test_without_jax_a_sentence_says_what_to_do():
  block = (
    'import runpy, sys\n'
    'sys.modules["jax"] = None\n'
    'sys.argv = sys.argv[1:]\n'
    'runpy.run_path(sys.argv[0], run_name="__main__")\n'
  )
  result = subprocess.run(
    [
      *(sys.executable, '-c', block, runs.ROOT / 'launch/actor.py'),
      *('--learner=localhost:1', '--inference=local'),
    ],
    env={**os.environ, 'PYTHONPATH': str(runs.ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert result.returncode == 1
  assert 'actor: --inference=local: jax is not installed here;' in result.stderr
  assert 'Traceback' not in result.stderr
