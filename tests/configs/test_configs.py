"""Tests that every configuration makes an agent that fits its environments."""

import ast
import functools

import chex
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
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
from tests.agents import sequences
from tests.networks import parameters

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


def _playable(name: str) -> base.Config:
  """Returns a configuration whose environments can be made here."""
  if 'craftax' in name:
    pytest.importorskip('craftax')
  return CONFIGS[name]()


@pytest.mark.parametrize('name', CONFIGS)
def test_has_the_keys_of_its_base(name):
  config = CONFIGS[name]()
  assert _keys(config) == _keys(_BASES[config.agent].get_config())


@pytest.mark.parametrize('name', CONFIGS)
def test_makes_agent_table_and_streams(name):
  config = _playable(name)
  env_spec = env_factory.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  assert jax.tree.leaves(agent.state_shapes().opt_state)
  assert jax.tree.leaves(agent.params_shapes())
  assert table_configs.table_config(config).max_size >= config.batch_size
  (share,) = layout_lib.plan_streams(config, tuple(jax.devices()[:1]))
  assert share.num_train == config.env.num_envs
  assert layout_lib.check_batch(config, 1) == config.batch_size


# ResNets compile for several seconds.
_DEEP = {'vtrace_atari_deep', 'vtrace_football'}


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(x, marks=[pytest.mark.slow] if x in _DEEP else [])
    for x in _NAMES
  ],
)
def test_first_update_is_finite_and_trains(name):
  config = _playable(name)
  for key, most in (
    ('unroll_length', 4),
    ('burn_in', 1),
    ('lookahead', 1),
    ('epochs', 1),
    ('minibatches', 2),
    ('updates_per_call', 2),
  ):
    if key in config:
      config[key] = min(config[key], most)
  config.learner.micro_batches = 1
  config.batch_size = width = 2
  env_spec = env_factory.make_env_spec(config)
  agent = agents.load_agent(config, env_spec)
  batch = sequences.random_batch(
    np.random.default_rng(0), agent, env_spec, config.unroll_length, width
  )
  # Initial weights take longer to compile than the rest.
  shapes = agent.state_shapes()
  state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  state = state._replace(params=parameters.draw(lambda: shapes.params))
  update = jax.jit(
    jax.vmap(agent.update, in_axes=(0, 0, None, None), axis_name=agents.AXIS),
    compiler_options={'xla_backend_optimization_level': 0},
  )
  new, output = update(
    *jax.tree.map(lambda x: jnp.asarray(x)[None], (state, batch)),
    jax.random.key(1),
    jnp.float32(0.5),
  )
  assert output.finite.all()
  chex.assert_tree_all_finite(new.params)
  moved = jax.tree.map(
    lambda a, b: np.abs(a[0] - b).max(), new.params, state.params
  )
  assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.parametrize('name', sorted(set(_NAMES) - {'base'}))
def test_linear_schedules_set_decay_frames(name):
  config = CONFIGS[name]()
  if config.optimizer.schedule == 'linear':
    assert config.optimizer.decay_frames >= config.total_env_frames


# Phrases in the docstring of an Atari configuration, and the setting that each
# implies. A lost life: `episodic_life` and `zero_discount_on_life_loss`.
_CONVENTIONS = {
  'sticky actions': {'no sticky actions': 0.0},
  'actions': {'all 18 actions': True, 'the minimal action set': False},
  'no-ops': {'up to 30 no-ops': 30},
  'FIRE': {'no FIRE at a reset': False},
  'rewards': {'unclipped rewards': False, ' clipped rewards': True},
  'length': {'at most 108,000 frames': 27_000},
  'lives': {
    'a lost life sets the discount to 0': (False, True),
    'a lost life has no effect on episode or discount': (False, False),
  },
}


@pytest.mark.parametrize(
  'name', [x for x in _NAMES if 'atari' in x or x == 'r2d2_pong']
)
def test_atari_conventions_are_as_the_docstring_says(name):
  config = CONFIGS[name]()
  env = config.env
  text = ast.get_docstring(
    ast.parse((config_files.FOLDER / f'{name}.py').read_text())
  )
  text = ' '.join(text.split())
  if 'the protocol of Machado et al. 2018' in text:
    protocol = base.get_config()
    base.set_atari_protocol(protocol)
    overrides = {'num_envs': env.num_envs, 'id': env.id}
    assert env.to_dict() == protocol.env.to_dict() | overrides
    assert config.network.frame_stack == protocol.network.frame_stack
    return
  settings = {
    'sticky actions': env.repeat_action_probability,
    'actions': env.full_action_space,
    'no-ops': env.noop_max,
    'FIRE': env.use_fire_reset,
    'rewards': env.reward_clip,
    'length': env.max_episode_steps,
    'lives': (env.episodic_life, env.zero_discount_on_life_loss or False),
  }
  for topic, phrases in _CONVENTIONS.items():
    (expected,) = [value for phrase, value in phrases.items() if phrase in text]
    assert settings[topic] == expected, topic


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
