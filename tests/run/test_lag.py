"""Tests of the policy lag that run/lag.py predicts."""

import jax
import pytest

from seedrl_jax.configs import ppo_cartpole, r2d2_cartpole, vtrace_atari
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.run import lag as lag_lib
from seedrl_jax.run import layout
from tests import runs
from tests.configs import test_configs


def _predict(config, placement=placement_lib.SINGLE, num_training=1):
  config = layout.local_config(config, placement)
  lock_step = config.deterministic
  devices = (jax.devices()[0],)
  shares = layout.plan_streams(config, devices, placement, lock_step)
  return lag_lib.predict(config, shares, placement, lock_step, num_training, 1)


def _queue(num_envs, batch_size, **changes):
  return runs.tiny(env__num_envs=num_envs, batch_size=batch_size, **changes)


@pytest.mark.parametrize(
  ('config', 'batches'),
  [
    (_queue(128, 32), 3.5),
    (_queue(512, 32), 9.5),
    (_queue(512, 8), 33.5),
    (_queue(256, 16, topology__streams_per_device=2), 9.5),
    (_queue(128, 32, learner__prefetch=4), 5.0),
    (_queue(128, 32, learner__publish_period=32), 19.0),
    (_queue(64, 16, deterministic=True), 1.5),
    (_queue(0, 8, actors__max_envs=64), 5.5),
    (_queue(32, 32), 2.0),
    (_queue(16, 8, replay__max_size=24), 3.0),
    # Inference waits for the learner.
    (ppo_cartpole.get_config(), 1),
  ],
)
def test_prediction_is_half_of_what_fits(config, batches):
  assert _predict(config).batches == batches


@pytest.mark.parametrize(
  ('config', 'placement'),
  [
    (r2d2_cartpole.get_config(), placement_lib.SINGLE),
    # Asynchronous workers, which take turns.
    (_queue(4, 4), placement_lib.Placement(0, 2, shares_batch=False)),
  ],
)
def test_only_a_queue_that_all_hosts_share_has_a_prediction(config, placement):
  assert _predict(config, placement) is None


def test_warns_of_too_many_environments_for_the_batch_and_mends_it():
  config, placement = vtrace_atari.get_config(), placement_lib.Placement(1, 4)
  config.env.num_envs, config.batch_size = 256, 8
  predicted = _predict(config, placement, num_training=8)
  assert predicted.at_once == 128
  assert (
    'may train off-policy. 128 batches of unrolls begin at once'
    in predicted.warning()
  )
  assert (
    'about 66 batches old when they are trained on; ' in predicted.warning()
  )
  assert predicted.warning().endswith(
    '--config.batch_size=80 lowers that to 8.'
  )
  config.batch_size = 80
  assert not _predict(config, placement, num_training=8).warning()
  # The devices of all hosts need equal pieces, and fewer are not enough.
  config.batch_size = 72
  assert _predict(config, placement, num_training=8).warning()


def test_a_batch_size_that_mends_nothing_is_not_proposed():
  predicted = _predict(_queue(4, 4, learner__publish_period=32))
  assert predicted.warning().endswith(
    '; lower --config.learner.publish_period, --config.learner.prefetch or '
    '--config.replay.max_size.'
  )
  # A queue must hold a batch.
  assert not _predict(_queue(1024, 32, replay__max_size=32)).batch_size


def test_minibatches_divide_the_batch_size():
  config = ppo_cartpole.get_config()
  config.learner.max_lag = None
  config.env.num_envs = 1280
  assert _predict(config).batch_size % config.minibatches == 0


def test_start_line_says_for_how_many_actors():
  predicted = _predict(_queue(128, 32))
  assert predicted.describe() == 'expected policy lag 3.5 batches'
  predicted = _predict(_queue(0, 32, actors__max_envs=128))
  assert (
    predicted.describe() == 'expected policy lag 3.5 batches with all actors'
  )
  predicted = _predict(_queue(0, 1, actors__max_envs=128))
  assert 'may train off-policy with all actors. 128 ' in predicted.warning()


@pytest.mark.parametrize('name', test_configs.CONFIGS)
def test_no_shipped_configuration_warns(name):
  predicted = _predict(test_configs.CONFIGS[name]())
  assert predicted is None or not predicted.warning()


def test_a_run_prints_it_at_the_start(tmp_path):
  run = runs.Run(_queue(16, 1, total_env_frames=100), tmp_path)
  run.train()
  _, agent, _, warning = run.output.splitlines()[:4]
  assert agent.endswith('; expected policy lag 9.5 batches.')
  assert warning.startswith('Warning: ')
