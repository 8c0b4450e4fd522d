"""Tests of EnvPool's environments in a compiled program."""

import chex
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.configs import base, r2d2_cartpole, vtrace_cartpole
from seedrl_jax.device_envs import stream as stream_lib
from seedrl_jax.envs import factory
from seedrl_jax.run import plan
from tests import runs


@pytest.mark.parametrize(
  ('name', 'limit'),
  [
    ('CartPole-v1', 10),
    ('Pendulum-v1', 10),
    ('FrozenLake-v1', None),
    ('Catch-v0', None),
    ('Blackjack-v1', None),
  ],
)
def test_outputs_are_those_of_a_stream(name, limit):
  config = base.get_config().env
  config.id, config.max_episode_steps = name, limit
  stream = factory.make_stream(config, seed=7, num_envs=6, batch_size=6)
  env = factory.compiled_env(config)
  compiled = stream_lib.DeviceEnvStream(env, seed=7, num_envs=6)
  assert compiled.spec == stream.spec
  rng, ends = np.random.default_rng(0), 0
  for _ in range(40):
    outputs = stream.recv(), compiled.recv()
    chex.assert_trees_all_equal(*outputs)
    ends += np.count_nonzero(outputs[0].step_type == types.StepType.LAST)
    action = env.spec.action.sample(rng, 6)
    for each, output in zip((stream, compiled), outputs, strict=True):
      each.send(action, output.env_id)
  assert ends >= 12
  assert stream.take_episodes() == compiled.take_episodes()


def _config(make=vtrace_cartpole.get_config, **values):
  small = {'env__id': 'CartPole-v1', 'replay__backend': 'auto'}
  return runs.tiny(make, **{**small, **values})


@pytest.mark.parametrize(
  ('split', 'devices'), [('1:1', 1), ('1:3', 4), ('2:2', 4)]
)
def test_runs_are_compiled_unless_told_otherwise(tmp_path, split, devices):
  config = _config(
    env__num_envs=24,
    batch_size=12,
    num_eval_envs=2,
    total_env_frames=2000,
    topology__max_devices=devices,
    topology__inference_to_training=split,
  )
  run = runs.Run(config, tmp_path)
  assert run.system.parts.store.address is None
  summary = run.train()
  assert summary['status'] == 'finished' and summary['updates'] > 2
  runs.check_cartpole_episodes(tmp_path)
  assert plan.make_plan(config).on_device
  config.env.compiled = 'off'
  assert plan.make_plan(config).device_env is None


@pytest.mark.parametrize(
  ('values', 'reason'),
  [
    ({'env__id': 'gymnasium:CartPole-v1'}, 'not cheap'),
    ({'env__id': 'MiniGrid-Empty-5x5-v0'}, 'not one array'),
    ({'env__id': 'Catch-v0', 'network__torso': 'resnet'}, 'convolutions'),
    ({'replay__backend': 'embedded'}, 'queue on the device'),
    ({'make': r2d2_cartpole.get_config}, 'queue on the device'),
    ({'actors__max_envs': 4}, 'remote actors'),
    ({'env__num_envs': 6}, 'a multiple of 4'),
    ({'env__batch_size': 2}, 'env.batch_size'),
  ],
)
def test_what_cannot_be_compiled(values, reason):
  config = _config(**values)
  assert plan.make_plan(config).device_env is None
  config.env.compiled = 'on'
  with pytest.raises(ValueError, match=f'env.compiled=on: .*{reason}'):
    plan.make_plan(config)
