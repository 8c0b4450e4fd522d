"""Tests for seedrl_jax/run/overview.py."""

import pathlib
import types as python_types

import jax
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import (
  base,
  ppo_cartpole,
  r2d2_cartpole,
  sac_pendulum,
)
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.run import layout, overview
from tests import runs
from tests.configs import test_configs

_CONTINUOUS = types.ActionSpec((2,), np.dtype(np.float32), (0, 0), (1, 1))


@pytest.mark.parametrize(
  ('make', 'values', 'expected'),
  [
    (
      base.get_config,
      {'num_eval_envs': 2, 'replay__max_size': 8},
      [
        'Environment: Catch-v0; observation float32[10, 5]; 3 actions; '
        '4 environments + 2 for evaluation.',
        # Of 50 pixels to 8 units, these to 3 actions and a value.
        'Agent: vtrace; torso mlp; 444 parameters; batch of 4 unrolls of 5 '
        'steps; expected policy lag 2.0 batches.',
        'Store: queue of up to 8 unrolls in this process; 1 cpu device for '
        'inference and training; writes to folder',
      ],
    ),
    (
      sac_pendulum.get_config,
      {'env__id': 'Pendulum-v1', 'batch_size': 1024, 'unroll_length': 1},
      [
        'Environment: Pendulum-v1; observation float32[3]; actions '
        'float32[1]; 4 environments + 0 for evaluation.',
        # A policy and two critics; no lag is expected of a replay.
        'Agent: sac; torso mlp; 149 parameters; batch of 1,024 unrolls of 1 '
        'step.',
        'Store: uniform replay of up to 20,000 unrolls in this process; 1 cpu '
        'device for inference and training; writes to folder',
      ],
    ),
  ],
)
def test_three_lines_describe_a_run(make, values, expected):
  config = runs.tiny(make, **values)
  parts = runs.open_parts(config)
  try:
    assert overview.lines(config, parts, pathlib.Path('folder')) == expected
  finally:
    parts.close()


@pytest.mark.parametrize(
  ('spec', 'words'),
  [
    (types.discrete(3), '3 actions'),
    (_CONTINUOUS, 'actions float32[2]'),
    (
      types.hybrid([types.discrete(3), _CONTINUOUS]),
      '3 actions with actions float32[2]',
    ),
  ],
)
def test_actions_in_words(spec, words):
  assert overview._action(spec) == words


def _expected_lag(config, placement=placement_lib.SINGLE):
  config = layout.local_config(config, placement)
  lock_step = config.deterministic
  devices = (jax.devices()[0],)
  shares = layout.plan_streams(config, devices, placement, lock_step)
  agent = python_types.SimpleNamespace(updates_per_batch=1)
  plan = python_types.SimpleNamespace(
    config=config,
    shares=shares,
    placement=placement,
    lock_step=lock_step,
    agent=agent,
  )
  return overview.expected_lag(plan)


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
def test_expected_lag_is_half_of_what_fits(config, batches):
  assert _expected_lag(config) == batches


@pytest.mark.parametrize(
  ('config', 'placement'),
  [
    (r2d2_cartpole.get_config(), placement_lib.SINGLE),
    # Asynchronous workers, which take turns.
    (_queue(4, 4), placement_lib.Placement(0, 2, shares_batch=False)),
  ],
)
def test_only_a_queue_that_all_hosts_share_has_a_lag(config, placement):
  assert _expected_lag(config, placement) is None


@pytest.mark.parametrize('name', test_configs.CONFIGS)
def test_no_shipped_configuration_warns(name):
  lag = _expected_lag(test_configs.CONFIGS[name]())
  assert not overview.lag_warning(lag)


def test_a_run_prints_it_at_the_start(tmp_path):
  run = runs.Run(_queue(16, 1, total_env_frames=100), tmp_path)
  run.train()
  _, agent, _, warning = run.output.splitlines()[:4]
  assert agent.endswith('; expected policy lag 9.5 batches.')
  assert 'steps are about 10 batches old when they' in warning


@pytest.mark.parametrize(
  ('changes', 'warns'),
  [
    ({'decay_frames': 100}, True),
    ({'decay_frames': 400}, False),
    ({'decay_frames': 100, 'final_learning_rate': 1e-4}, False),
    ({'decay_frames': 100, 'schedule': 'constant'}, False),
    ({}, False),
  ],
)
def test_warns_if_a_part_of_the_run_would_not_train(changes, warns):
  config = runs.tiny()
  config.optimizer.update(changes)
  text = (
    'The learning rate reaches 0 after 100 of 400 frames, and the rest of the '
    'run does not train. To decay it over the whole run, set '
    '--config.optimizer.decay_frames=400.'
  )
  assert overview.decay_warning(config) == (text if warns else '')
