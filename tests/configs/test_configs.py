"""Tests that every configuration makes an agent that fits its environments."""

import functools

import jax
import ml_collections
import pytest

from seedrl_jax.agents import base as agents
from seedrl_jax.configs import (
  base,
  benchmark,
  dyna_q_cartpole,
  ppo_cartpole,
  pqn_cartpole,
  r2d2_base,
  sac_mujoco,
)
from seedrl_jax.envs import factory as env_factory
from seedrl_jax.replay import table_configs
from seedrl_jax.run import layout as layout_lib
from seedrl_jax.runtime import config_files

_NAMES = [name for name in config_files.names() if name != 'benchmark']
CONFIGS = {
  name: functools.partial(
    config_files.load, str(config_files.FOLDER / f'{name}.py')
  )
  for name in _NAMES
} | {
  f'benchmark:{case}': lambda case=case: benchmark.get_config(case)
  for case in benchmark.CASES
}

# The configs that define each agent's keys.
_BASES = {
  'dyna_q': dyna_q_cartpole,
  'ppo': ppo_cartpole,
  'pqn': pqn_cartpole,
  'r2d2': r2d2_base,
  'sac': sac_mujoco,
  'vtrace': base,
}


def _keys(config: ml_collections.ConfigDict, prefix: str = '') -> set[str]:
  keys = set()
  for name, value in config.items():
    keys.add(prefix + name)
    if isinstance(value, ml_collections.ConfigDict):
      keys |= _keys(value, f'{prefix}{name}.')
  return keys


@pytest.mark.parametrize('name', CONFIGS)
def test_has_the_keys_of_its_base(name):
  config = CONFIGS[name]()
  assert _keys(config) == _keys(_BASES[config.agent].get_config())


@pytest.mark.parametrize('name', CONFIGS)
def test_makes_agent_table_and_streams(name):
  config = CONFIGS[name]()
  env_spec = env_factory.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  assert jax.tree.leaves(agent.state_shapes().opt_state)
  assert jax.tree.leaves(agent.params_shapes())
  assert table_configs.table_config(config).max_size >= config.batch_size
  (plan,) = layout_lib.plan_streams(config, tuple(jax.devices()[:1]))
  assert plan.num_train == config.env.num_envs
  assert layout_lib.check_batch(config, 1) == config.batch_size


@pytest.mark.parametrize(
  ('case', 'num_envs', 'env_batch_size'),
  [
    ('free', 8, 8),
    ('pong_tiny', 6, 3),
    # Never none, which would be half of them.
    ('pong_shallow', 1, 1),
    ('pong_r2d2', 4, 0),
  ],
)
def test_benchmark_case_keeps_its_share_in_a_batch_of_more_or_fewer(
  case, num_envs, env_batch_size
):
  env = benchmark.get_config(case, num_envs).env
  assert (env.num_envs, env.batch_size) == (num_envs, env_batch_size)


def test_unknown_benchmark_case_is_refused_with_the_known_ones():
  with pytest.raises(ValueError, match='no case pong; take one of free, '):
    benchmark.get_config('pong')
