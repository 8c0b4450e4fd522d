"""Tests for run/layout.py: values of keys, and how a run is divided."""

import math
import re

import jax
import numpy as np
import pytest

from seedrl_jax.agents import base as agents
from seedrl_jax.configs import base, dyna_q_cartpole, r2d2_base, sac_mujoco
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.learner import placement as placement_lib
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import settings
from tests import runs
from tests.configs import test_configs

_CONFIGS = test_configs.CONFIGS


def _check(config):
  layout_lib.check(config)


@pytest.mark.parametrize('name', _CONFIGS)
def test_a_shipped_configuration_passes(name):
  config = _CONFIGS[name]()
  _check(config)
  allowed = base.ALLOWED | dict(agents.allowed(config))
  assert set(dict(settings.leaves(config, allowed))) == set(allowed)


@pytest.mark.parametrize(
  ('make', 'key', 'value'),
  [
    (base.get_config, 'agent', 'os.path'),
    (base.get_config, 'seed', 2**31),
    (base.get_config, 'network.torso', 'vit'),
    (base.get_config, 'network.hidden_sizes', (1.5,)),
    (base.get_config, 'network.frame_stack', 10**9),
    (base.get_config, 'replay.max_size', 10**18),
    (r2d2_base.get_config, 'burn_in', 10**9),
    (base.get_config, 'optimizer.learning_rate', math.nan),
    (base.get_config, 'actors.timeout', 1e12),
    (base.get_config, 'log.every_seconds', 0.0),
    (base.get_config, 'log.writers', ('tensorboard',)),
    (base.get_config, 'log.writers', ('csv', 'csv')),
    (base.get_config, 'log.writers', ('csv,jsonl',)),
    (base.get_config, 'log.writers', ('csv', 'my_writer')),
    (r2d2_base.get_config, 'loss.priority_eta', math.nan),
    (r2d2_base.get_config, 'exploration.epsilon_base', 1.5),
    (sac_mujoco.get_config, 'replay.sampler', 'prioritized'),
  ],
)
def test_a_bad_value_is_refused_by_its_flag(make, key, value):
  config = make()
  config.update_from_flattened_dict({key: value})
  start = re.escape(f'--config.{key}={value}: ')
  with pytest.raises(ValueError, match=f'^{start}.*\\.$'):
    _check(config)


def test_the_best_checkpoint_needs_evaluation():
  config = base.get_config()
  config.num_eval_envs, config.checkpoint.keep_best = 0, True
  with pytest.raises(ValueError, match=r'keep_best=True: needs evaluation'):
    _check(config)


def test_another_agents_configuration_is_refused():
  config = base.get_config()
  config.agent = 'r2d2'
  with pytest.raises(ValueError, match=r'config\.burn_in is missing, which'):
    _check(config)
  config = r2d2_base.get_config()
  config.loss.entropy_cost = 0.01
  with pytest.raises(ValueError, match=r'config\.loss\.entropy_cost means'):
    _check(config)
  # An agent without a table may have keys of its own.
  config.agent, config.loss.mine = 'tests.run.echoing', 1
  _check(config)


def _plans(count, **values):
  devices = tuple(jax.devices()[:count])
  config = runs.tiny(**values)
  return layout_lib.plan_streams(
    config, devices, lock_step=config.deterministic
  )


def test_environments_are_divided_evenly():
  shares = _plans(
    2, env__num_envs=7, num_eval_envs=3, topology__streams_per_device=2
  )
  ids = np.concatenate([p.global_env_id for p in shares])
  assert sorted(ids) == list(range(10))
  assert [p.num_train for p in shares] == [2, 2, 2, 1]
  sizes = [len(p.global_env_id) for p in shares]
  assert max(sizes) - min(sizes) <= 1
  for share, size in zip(shares, sizes, strict=True):
    train, evaluation = np.split(share.global_env_id, [share.num_train])
    assert (train < 7).all() and (evaluation >= 7).all()
    assert share.batch_size == size
  assert [p.device.id for p in shares] == [0, 0, 1, 1]


@pytest.mark.parametrize(
  'env_id, num_envs, batch_size',
  [
    ('CartPole-v1', 255, 255),
    ('CartPole-v1', 257, 129),
    ('gymnasium:CartPole-v1', 7, 4),
    ('Pong-v5', 7, 4),
  ],
)
def test_half_of_the_environments_step_unless_calls_would_cost_more(
  env_id: str, num_envs: int, batch_size: int
):
  (share,) = _plans(1, env__id=env_id, env__num_envs=num_envs, num_eval_envs=0)
  assert share.batch_size == batch_size


def test_lock_step_has_one_stream_of_whole_batches():
  (share,) = _plans(
    4, deterministic=True, topology__streams_per_device=2, num_eval_envs=1
  )
  assert share.batch_size == len(share.global_env_id) == 5


def test_actors_get_a_stream_of_each_inference_device():
  shares = _plans(2, actors__max_envs=5, num_eval_envs=3)
  assert [p.is_remote for p in shares] == [False, False, True, True]
  assert [p.device.id for p in shares] == [0, 1, 0, 1]
  local, remote = shares[:2], shares[2:]
  assert [p.global_env_id.tolist() for p in remote] == [[4, 5, 6], [7, 8]]
  assert all(p.num_train == len(p.global_env_id) for p in remote)
  assert [p.batch_size for p in remote] == [3, 2]
  # Evaluation is in this process, and its ids are the last.
  ids = np.concatenate([p.global_env_id for p in local])
  assert sorted(ids) == [0, 1, 2, 3, 9, 10, 11]
  spec = env_factory.make_env_spec(runs.tiny(actors__max_envs=5))
  assert spec.num_envs == 9


@pytest.mark.parametrize('num_eval_envs, count', [(0, 1), (3, 2)])
def test_actors_may_have_all_that_train(num_eval_envs: int, count: int):
  shares = _plans(
    2, env__num_envs=0, actors__max_envs=1, num_eval_envs=num_eval_envs
  )
  assert [p.num_train for p in shares] == [0, 1][-count:]
  assert len(shares[0].global_env_id) == (num_eval_envs or 1)


@pytest.mark.parametrize(
  'values, expected',
  [
    # The learner gets a queue's blocks as they are.
    ({'batch_size': 8}, 8),
    # Otherwise no block waits for an environment's second unroll.
    ({'batch_size': 8, 'replay__sampler': 'uniform'}, 3),
    (
      {
        'batch_size': 2,
        'replay__sampler': 'prioritized',
        'deterministic': True,
      },
      7,
    ),
  ],
)
def test_block_width(values, expected):
  config = runs.tiny(
    env__num_envs=7,
    topology__streams_per_device=2,
    replay__max_size=9,
    **values,
  )
  assert plan_lib.make_plan(config).block_width == expected


def test_hosts_share_out_the_batch_and_have_seeds_of_their_own():
  config = runs.tiny(batch_size=12, num_eval_envs=3)
  assert layout_lib.local_config(config, placement_lib.SINGLE) is config
  configs = [
    layout_lib.local_config(config, placement_lib.Placement(i, 3))
    for i in range(3)
  ]
  assert [c.batch_size for c in configs] == [4, 4, 4]
  assert [c.num_eval_envs for c in configs] == [3, 0, 0]
  assert configs[0].seed == config.seed and len({c.seed for c in configs}) == 3
  assert [c.env.num_envs for c in configs] == [config.env.num_envs] * 3
  with pytest.raises(ValueError, match='be a multiple of the 5 hosts'):
    layout_lib.local_config(config, placement_lib.Placement(0, 5))


def test_workers_have_batches_of_their_own_and_the_last_no_environments():
  config = runs.tiny(dyna_q_cartpole.get_config, batch_size=5)
  hosts = [
    placement_lib.Placement(i, 3, shares_batch=False, has_environments=i < 2)
    for i in range(3)
  ]
  configs = [layout_lib.local_config(config, host) for host in hosts]
  assert [c.batch_size for c in configs] == [5, 5, 5]
  devices = tuple(jax.devices()[:1])
  acts = [
    bool(layout_lib.plan_streams(config, devices, host))
    for config, host in zip(configs, hosts, strict=True)
  ]
  assert acts == [True, True, False]


def test_environments_of_all_hosts_have_ids_of_their_own():
  config = runs.tiny(actors__max_envs=3, num_eval_envs=2)
  assert env_factory.make_env_spec(config, 2).num_envs == 14
  ids = [
    np.concatenate([
      p.global_env_id
      for p in layout_lib.plan_streams(
        layout_lib.local_config(config, placement_lib.Placement(i, 2)),
        tuple(jax.devices()[:2]),
        placement_lib.Placement(i, 2),
      )
    ]).tolist()
    for i in range(2)
  ]
  assert sorted(ids[0]) == [*range(7), 14, 15]
  assert sorted(ids[1]) == [*range(7, 14)]
