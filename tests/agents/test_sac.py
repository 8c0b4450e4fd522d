"""Tests SAC: losses against NumPy, calls of several updates, acting, runs."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents.sac import agent as agent_lib
from seedrl_jax.configs import sac_mujoco
from seedrl_jax.learner import update
from seedrl_jax.networks import network as network_lib
from tests import runs
from tests.agents import sac_reference, sequences
from tests.networks import parameters

_BATCH, _ACTIONS = 8, 2
_KEY = jax.random.PRNGKey(7)
_LOW, _HIGH = np.array([-2.0, 0.0]), np.array([1.0, 3.0])
_ENV_SPEC = types.EnvSpec(
  types.StreamSpec(
    observation=types.ArraySpec((3,), np.dtype(np.float32)),
    action=types.ActionSpec(
      (_ACTIONS,), np.dtype(np.float32), tuple(_LOW), tuple(_HIGH)
    ),
    action_repeat=1,
    name='toy',
  ),
  num_envs=6,
  num_eval_envs=2,
)


def _config(**changes):
  config = sac_mujoco.get_config()
  config.network.hidden_sizes = (8, 6)
  config.updates_per_call, config.batch_size = 1, _BATCH
  config.update_from_flattened_dict(changes)
  return config


def _learner(config):
  network = network_lib.make_network(config.network, _ENV_SPEC)
  return agent_lib.Learner(config, _ENV_SPEC, network)


def _state(agent):
  state = parameters.draw(agent.init, _KEY)
  # Far from the critics, to see where each is used.
  targets = jax.tree.map(lambda x: 0.5 - x, state.params.critics)
  opt_state = jax.tree.map(np.zeros_like, state.opt_state)
  return state._replace(target_critics=targets, opt_state=opt_state)


def _batch(length=1, batch=_BATCH, seed=0):
  """Returns a batch with episode ends, whose resets have absurd rewards."""
  rng = np.random.default_rng(seed)
  steps = sequences.random_steps(rng, length + 1, batch, features=3)
  # Some environments have a transition, some a reset at every step.
  steps = jax.tree.map(lambda x: x[1:], steps)
  resets = steps.step_type == types.StepType.FIRST
  shape = (length + 1, batch, _ACTIONS)
  action = rng.uniform(_LOW, _HIGH, shape).astype(np.float32)
  steps = steps._replace(
    reward=np.where(resets, np.inf, steps.reward).astype(np.float32),
    previous_action=np.zeros(shape, np.float32),
    agent_output=agent_lib.AgentOutput(action),
  )
  core = network_lib.CoreState((), ())
  return sequences.batch_of(steps, core)


@pytest.mark.parametrize(
  ('length', 'changes'),
  [
    (1, {}),
    (5, {'loss.reward_scale': 0.3, 'loss.target_entropy': 0.7}),
    (3, {'loss.adapt_temperature': False, 'loss.discount': 0.7}),
  ],
)
def test_losses_and_gradients_equal_numpy(length, changes):
  """Each parameter descends on its own loss, and on nothing else."""
  config = _config(**changes)
  learner = _learner(config)
  state, steps = _state(learner), _batch(length).unroll.steps
  # One that does not adapt is the configured one.
  config.loss.temperature = float(np.exp(state.params.log_temperature))
  gradient = jax.jit(jax.value_and_grad(learner.loss, has_aux=True))
  (_, metrics), grads = gradient(
    state.params, state.target_critics, steps, _KEY
  )
  noises = [
    np.asarray(jax.random.normal(key, (length, _BATCH, _ACTIONS)), np.float64)
    for key in jax.random.split(_KEY)
  ]
  params, targets, scaled = jax.tree.map(
    lambda x: np.asarray(x, np.float64),
    (state.params, state.target_critics, steps),
  )
  action = 2 * (scaled.agent_output.action - _LOW) / (_HIGH - _LOW) - 1
  scaled = scaled._replace(agent_output=agent_lib.AgentOutput(action))
  entropy = config.loss.target_entropy
  reference = functools.partial(
    sac_reference.losses,
    config.loss,
    target_critics=targets,
    steps=scaled,
    noises=noises,
    target_entropy=-_ACTIONS if entropy is None else entropy,
  )
  expected = reference(params)
  for metric, name in (('critic', 'critics'), ('policy', 'policy')):
    np.testing.assert_allclose(metrics[metric], expected[name], rtol=1e-5)
  rng = np.random.default_rng(1)
  for name in params._fields:
    part = getattr(params, name)
    for _ in range(3):
      direction = jax.tree.map(lambda x: rng.normal(size=x.shape), part)
      ends = [
        jax.tree.map(lambda x, d, h=h: x + h * d, part, direction)
        for h in (1e-7, -1e-7)
      ]
      above, below = (
        reference(params._replace(**{name: end}))[name] for end in ends
      )
      products = jax.tree.map(np.vdot, getattr(grads, name), direction)
      slope = sum(jax.tree.leaves(products))
      np.testing.assert_allclose(slope, (above - below) / 2e-7, rtol=1e-4)


def _updated(config, batches):
  """Returns the agent's state after updates on each batch."""
  agent = base.load_agent(config, _ENV_SPEC)
  updater = update.Updater(agent, jax.devices()[:1])
  state = updater.replicate(
    update.LearnerState(_state(agent), np.zeros((), np.int32), _KEY)
  )
  for batch in batches:
    state = state._replace(key=jnp.tile(_KEY, (1, 1)))
    state, output, *_ = updater(state, updater.shard([batch]), 0.5)
    assert output.finite
  return update.host_state(state)


def test_several_updates_in_a_call_are_those_of_several_calls():
  whole = _batch(length=2, batch=3 * _BATCH)
  parts = [base.select_unrolls(whole, slice(i, None, 3)) for i in range(3)]
  expected = _updated(_config(), parts)
  config = _config(updates_per_call=3, batch_size=3 * _BATCH)
  actual = _updated(config, [whole])
  chex.assert_trees_all_close(
    actual.agent, expected.agent, rtol=1e-5, atol=1e-6
  )
  assert actual.agent.step == actual.step == 3


def test_steps_of_each_part_and_the_targets():
  config = _config(**{
    'optimizer.learning_rate': 1e-2,
    'optimizer.policy_factor': 0.3,
    'loss.target_update_rate': 0.25,
  })
  before = _state(_learner(config))
  after = _updated(config, [_batch()]).agent
  moved = jax.tree.map(
    lambda x, y: np.abs(x - y).max(), before.params, after.params
  )
  # Adam's first step has the size of the learning rate.
  for name, size in (('policy', 3e-3), ('critics', 1e-2)):
    sizes = jax.tree.leaves(getattr(moved, name))
    np.testing.assert_allclose(sizes, size, rtol=1e-2, err_msg=name)
  expected = jax.tree.map(
    lambda old, new: 0.75 * old + 0.25 * new,
    before.target_critics,
    after.params.critics,
  )
  chex.assert_trees_all_close(after.target_critics, expected, rtol=1e-5)


@pytest.mark.parametrize(('target', 'sign'), [(50.0, 1), (-50.0, -1)])
@pytest.mark.parametrize('adapts', [True, False])
def test_temperature_seeks_the_target_entropy(target, sign, adapts):
  config = _config(**{
    'loss.target_entropy': target,
    'loss.adapt_temperature': adapts,
    'loss.temperature': 0.2,
  })
  first = jax.jit(_learner(config).init)(_KEY).params.log_temperature
  assert np.exp(first) == pytest.approx(0.2)
  before = _state(_learner(config)).params.log_temperature
  after = _updated(config, [_batch()]).agent.params.log_temperature
  assert np.sign(after - before) == sign * adapts


@pytest.mark.parametrize('step', [0, 1])
def test_acts_at_random_then_by_the_policy_and_evaluates_its_mean(step):
  agent = base.load_agent(_config(), _ENV_SPEC)
  state = _state(agent)._replace(step=np.int32(step))
  size = 4000
  inputs = types.AgentInput(
    observation=np.ones((size, 3), np.float32),
    reward=np.zeros(size, np.float32),
    previous_action=np.zeros((size, _ACTIONS), np.float32),
    first=np.zeros(size, bool),
  )
  env_id = np.where(np.arange(size) < 2, _ENV_SPEC.num_envs, 0)
  output, _ = jax.jit(agent.act)(
    agent.acting_params(state), _KEY, inputs, agent.initial_core(size), env_id
  )
  action = np.asarray(output.action)
  evaluated, sampled = action[:2], action[2:]
  assert (sampled >= _LOW).all() and (sampled <= _HIGH).all()
  noise = np.asarray(jax.random.normal(_KEY, (size, _ACTIONS)))[2:]
  policy = jax.tree.map(np.asarray, state.params.policy)

  def expected(noise):
    unit, _ = sac_reference.sample(policy, np.ones(3), noise)
    return _LOW + (unit + 1) / 2 * (_HIGH - _LOW)

  np.testing.assert_allclose(evaluated, [expected(0.0)] * 2, rtol=1e-5)
  if step:
    np.testing.assert_allclose(
      sampled, [expected(x) for x in noise], rtol=1e-4, atol=1e-5
    )
    return
  quartiles = np.quantile(sampled, [0.25, 0.5, 0.75], axis=0)
  share = np.array([[0.25], [0.5], [0.75]])
  np.testing.assert_allclose(quartiles, _LOW + share * (_HIGH - _LOW), atol=0.1)


@pytest.mark.parametrize(
  ('changes', 'env', 'words'),
  [
    ({'network.lstm_size': 4}, {}, r'network\.lstm_size=4'),
    ({'network.frame_stack': 2}, {}, r'network\.frame_stack=2'),
    ({'learner.micro_batches': 2}, {}, r'learner\.micro_batches=2'),
    (
      {},
      {'observation': types.ArraySpec((8, 8, 3), np.dtype(np.uint8))},
      'has images',
    ),
    (
      {},
      {'action': _ENV_SPEC.action._replace(maximum=(1.0, np.inf))},
      'equal or infinite',
    ),
  ],
)
def test_says_what_it_cannot_do(changes, env, words):
  spec = types.EnvSpec(_ENV_SPEC.stream._replace(**env), 6, 2)
  with pytest.raises(ValueError, match=f'^--config.*{words}.*[^.]*\\.$'):
    base.load_agent(_config(**changes), spec)


@pytest.mark.parametrize(
  ('count', 'rows'),
  # Coded in the critics' layer, and by learned vectors.
  [(500, [500 + _ACTIONS, 8]), (5000, [5000, 64])],
)
def test_critics_tell_all_choices_apart(count, rows):
  choice = types.ArraySpec((), np.dtype(np.int32), (range(count),))
  stream = _ENV_SPEC.stream._replace(observation=choice)
  spec = types.EnvSpec(stream, 6, 2)
  state = base.load_agent(_config(), spec).state_shapes()
  shapes = [list(x.shape[1:]) for x in jax.tree.leaves(state.params.critics)]
  assert rows in shapes


def test_run_keeps_the_ratio_and_resumes_with_its_replay(tmp_path):
  config = runs.tiny(
    sac_mujoco.get_config,
    **{
      'env.id': 'Pendulum-v1',
      'num_eval_envs': 2,
      'unroll_length': 1,
      'updates_per_call': 3,
      'batch_size': 12,
      'replay.min_size': 40,
      'replay.max_size': 5_000,
      'replay.samples_per_insert': 4.0,
      'total_env_frames': 600,
      'log.every_seconds': 0.02,
    },
  )
  summary = runs.Run(config, tmp_path).train()
  last = runs.rows(tmp_path)[-1]
  assert last.keys() <= runs.documented_columns()
  assert np.isfinite(float(last['losses/temperature']))
  assert float(last['replay/samples_per_insert']) == pytest.approx(4.0, rel=0.1)
  assert summary['updates'] % 3 == 0 and summary['updates'] > 400
  config.total_env_frames *= 2
  run = runs.Run(config, tmp_path)
  size = run.system.parts.store.info()['unrolls'].size
  assert size == float(last['replay/size_unrolls']) > 500
  assert run.initial_state.agent.step == summary['updates']
  assert run.train()['updates'] > summary['updates']
  assert 'waits for the replay (' not in run.output
