"""Tests what every built-in agent promises; see `seedrl_jax.agents.base`."""

import copy
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import (
  dqn_cartpole,
  dyna_q_cartpole,
  ppo_cartpole,
  pqn_cartpole,
  r2d2_base,
  sac_pendulum,
)
from seedrl_jax.envs import tasks
from seedrl_jax.learner import update as update_lib
from tests.agents import sequences
from tests.networks import parameters

_BATCH, _NUM_ENVS = 12, 6
_KEY = jax.random.PRNGKey(0)
_LSTM = {'network.lstm_size': 4}
_CASES = {
  'vtrace': (base_config, {'loss.target_entropy': 0.5}),
  'vtrace_lstm': (base_config, _LSTM),
  'vtrace_popart': (base_config, {'network.popart': True}),
  'ppo': (ppo_cartpole, {'normalization.observations': True}),
  'ppo_popart': (ppo_cartpole, {'network.popart': True}),
  'vtrace_tasks': (
    base_config,
    {'network.popart': True, 'network.use_task': True},
  ),
  'ppo_tasks': (ppo_cartpole, {'network.popart': True}),
  'ppo_lstm': (
    ppo_cartpole,
    {**_LSTM, 'loss.normalize_advantages': 'minibatch'},
  ),
  'ppo_continuous': (ppo_cartpole, {'normalization.rewards': True}),
  'pqn': (pqn_cartpole, {}),
  'pqn_lstm': (pqn_cartpole, _LSTM),
  'dqn': (dqn_cartpole, {}),
  'dqn_mean': (dqn_cartpole, {'loss.reduction': 'mean'}),
  'r2d2': (
    r2d2_base,
    {
      **_LSTM,
      'burn_in': 2,
      'loss.n_steps': 3,
      'network.head_hidden_size': 5,
    },
  ),
  'sac': (sac_pendulum, {'updates_per_call': 1}),
  # Imagined transitions, which are random, count from half of the run on.
  'dyna_q': (
    dyna_q_cartpole,
    {'unroll_length': 1, 'planning.start_frames': 500},
  ),
}
_SMALL = {
  'unroll_length': 4,
  'batch_size': _BATCH,
  'total_env_frames': 1000,
  'network.hidden_sizes': (8,),
  'network.use_previous_action': False,
  # Linear, so that rounding stays small, in the gradient and beyond its clip.
  'optimizer.name': 'sgd',
  'optimizer.learning_rate': 0.1,
  'optimizer.schedule': 'constant',
  'optimizer.clip_norm': 0.5,
}
_LOSS = ('total', 'gradient_norm')
_every_agent = pytest.mark.parametrize('case', _CASES)


class _Subject:
  """A small agent of a case, its first state and its data."""

  def __init__(self, case, **changes):
    module, values = _CASES[case]
    config = module.get_config()
    config.update_from_flattened_dict({**_SMALL, **values, **changes})
    if 'epochs' in config:
      # Devices would draw minibatches of their own.
      config.epochs, config.minibatches = 2, 1
    if 'exploration' in config:
      config.exploration.eval_epsilon = 0.0
    if config.agent in ('r2d2', 'dyna_q'):
      config.exploration.decay_frames = 100
    action = types.discrete(3)
    if case in ('sac', 'ppo_continuous'):
      action = types.ActionSpec(
        (2,), np.dtype(np.float32), (-2.0, 0.0), (1.0, 3.0)
      )
    observation = types.ArraySpec((2,), np.dtype(np.float32))
    stream = types.StreamSpec(observation, action, 1, 'toy')
    self.has_tasks = 'tasks' in case
    if self.has_tasks:
      stream = tasks.join_specs([stream, stream._replace(name='other')])
    self.agent = base.load_agent(
      config, types.EnvSpec(stream, _NUM_ENVS, num_eval_envs=2)
    )
    self.action = action
    self.length = self.agent.num_transitions(config.unroll_length)
    self.initial = update_lib.initial_state(self.agent, _KEY)

  def steps(self, seed=0):
    """Returns steps; some begin with the reset of an episode's end."""
    rng = np.random.default_rng(seed)
    steps = sequences.random_steps(rng, self.length + 1, _BATCH)
    steps = jax.tree.map(lambda x: x[1:], steps)
    if self.has_tasks:
      numbers = rng.integers(0, 2, steps.reward.shape, np.int32)
      observation = tasks.with_task(steps.observation, numbers)
      steps = steps._replace(observation=observation)
    previous = np.zeros((self.length + 1, _BATCH, *self.action.shape))
    return steps._replace(previous_action=previous.astype(self.action.dtype))

  @functools.cached_property
  def _unroll(self):
    """Returns a function that acts unrolls `[T + 1, B]`."""
    params = self.agent.acting_params(self.initial.agent)
    env_id = np.arange(_BATCH) % _NUM_ENVS

    def act(core, inputs):
      output, core = self.agent.act(params, *inputs, core, env_id)
      return core, output

    return jax.jit(lambda core, inputs: jax.lax.scan(act, core, inputs)[1])

  def batch(self, seed=0):
    """Returns unrolls that the agent has acted, from random cores."""
    rng, steps = np.random.default_rng(seed), self.steps(seed)
    core = jax.tree.map(
      lambda x: rng.normal(size=x.shape).astype(np.float32),
      self.agent.initial_core(_BATCH),
    )
    keys = jax.random.split(jax.random.key(seed), self.length + 1)
    acted = self._unroll(core, (keys, types.agent_input(steps)))
    steps = steps._replace(agent_output=jax.device_get(acted))
    weight = rng.uniform(0.5, 1.0, _BATCH).astype(np.float32)
    return sequences.batch_of(steps, core)._replace(weight=weight)


@functools.cache
def _subject(case):
  return _Subject(case)


def _train(subject, batches, num_devices=1, progress=0.25):
  """Returns the agent's last state, and the last output, after updates."""
  updater = update_lib.Updater(subject.agent, jax.devices()[:num_devices])
  state = updater.replicate(subject.initial)
  for batch in batches:
    pieces = sequences.pieces_of(batch, num_devices)
    state, output, *_ = updater(state, updater.shard(pieces), progress)
  output = output._replace(metrics=output.metrics.fetch())
  if num_devices > 1:
    assert len(set(updater.fingerprints(state))) == 1
  return update_lib.host_state(state).agent, jax.device_get(output)


def _assert_same(output, other, names):
  for name in names:
    np.testing.assert_allclose(
      output.metrics[name], other.metrics[name], rtol=1e-4, err_msg=name
    )


@functools.cache
def _trained(case):
  """Returns what `_train` does, with one trace for all updates."""
  subject = _subject(case)
  update = subject.agent.update
  chex.clear_trace_counter()

  @chex.assert_max_traces(n=1)
  def traced(state, batch, key, progress):
    return update(state, batch, key, progress)

  once = copy.copy(subject)
  once.agent = dataclasses.replace(subject.agent, update=traced)
  return _train(once, [subject.batch(seed) for seed in range(3)])


@_every_agent
def test_update_is_finite_traced_once_and_trains_every_parameter(case):
  state, output = _trained(case)
  assert output.finite
  # By plain SGD: parameters are finite only if all gradients were.
  chex.assert_tree_all_finite((state, output.metrics, output.priorities))
  moved = jax.tree.map(
    lambda a, b: np.abs(a - b).max(),
    state.params,
    _subject(case).initial.agent.params,
  )
  for path, distance in jax.tree_util.tree_leaves_with_path(moved):
    assert distance > 1e-7, jax.tree_util.keystr(path)


@_every_agent
def test_two_devices_update_as_one(case, monkeypatch):
  # Devices draw noise of their own.
  monkeypatch.setattr(
    jax.random, 'normal', lambda key, shape: jnp.full(shape, 0.3)
  )
  subject = _subject(case)
  batches = [subject.batch(seed) for seed in range(2)]
  (one, output), (two, output_of_two) = (
    _train(subject, batches, count) for count in (1, 2)
  )
  chex.assert_trees_all_close(one, two, rtol=1e-4, atol=1e-5)
  _assert_same(output, output_of_two, (*_LOSS, 'masked_share'))
  priorities, of_two = jax.tree.map(
    np.ravel, (output.priorities, output_of_two.priorities)
  )
  chex.assert_trees_all_close(priorities, of_two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('case', ['vtrace_lstm', 'r2d2', 'dqn_mean', 'dyna_q'])
def test_pieces_of_a_batch_update_as_the_whole(case):
  whole, pieces = _subject(case), _Subject(case, **{'learner.micro_batches': 3})
  batches = [whole.batch(seed) for seed in range(2)]
  (expected, output), (state, output_of_pieces) = (
    _train(x, batches) for x in (whole, pieces)
  )
  chex.assert_trees_all_close(state, expected, rtol=1e-4, atol=1e-5)
  _assert_same(output, output_of_pieces, (*_LOSS, 'masked_share'))
  chex.assert_trees_all_close(
    output.priorities, output_of_pieces.priorities, rtol=1e-4, atol=1e-5
  )


@_every_agent
def test_what_leads_to_a_reset_trains_nothing(case):
  """Poisons the transitions from LAST to FIRST."""
  subject = _subject(case)
  batch = subject.batch()
  steps = batch.unroll.steps
  entering = steps.step_type == types.StepType.FIRST
  entering[0] = False
  leaving = np.concatenate([entering[1:], np.zeros_like(entering[:1])])
  assert entering.any()

  def spoil(x):
    where = leaving.reshape(leaving.shape + (1,) * (x.ndim - 2))
    # Otherwise for each action: a policy is not changed by a constant.
    ramp = np.arange(x.shape[-1])
    spoiled = 2 - x if x.dtype == np.int32 else 3.0 * x - ramp
    return np.where(where, spoiled, x).astype(x.dtype)

  poisoned = steps._replace(
    reward=np.where(entering, 1e3, steps.reward).astype(np.float32),
    discount=np.where(entering, 3.0, steps.discount).astype(np.float32),
    agent_output=jax.tree.map(spoil, steps.agent_output),
  )
  poisoned = batch._replace(unroll=batch.unroll._replace(steps=poisoned))
  (state, output), (other, output_of_other) = (
    _train(subject, [x]) for x in (batch, poisoned)
  )
  chex.assert_trees_all_equal(state, other)
  chex.assert_trees_all_equal(output.priorities, output_of_other.priorities)


@pytest.mark.parametrize('case', ['vtrace', 'ppo', 'pqn', 'dqn', 'sac'])
def test_resets_count_as_absent(case, monkeypatch):
  # Samples differ in number, so they draw other noise.
  monkeypatch.setattr(
    jax.random, 'normal', lambda key, shape: jnp.full(shape, 0.3)
  )
  # Whose statistics count all observations.
  values = {'normalization.observations': False} if case == 'ppo' else {}
  subject = _Subject(case, unroll_length=1, **values)
  batch = subject.batch()
  # Else the largest weight may be a reset's.
  batch = batch._replace(weight=np.ones(_BATCH, np.float32))
  valid = np.flatnonzero(batch.unroll.steps.step_type[1])
  assert 2 < len(valid) < 11
  part = base.select_unrolls(batch, valid)
  (state, output), (other, output_of_other) = (
    _train(subject, [x]) for x in (batch, part)
  )
  chex.assert_trees_all_close(state.params, other.params, rtol=1e-5, atol=1e-7)
  _assert_same(output, output_of_other, _LOSS)


@_every_agent
def test_training_explores_and_evaluation_takes_the_mode(case):
  subject, (state, _) = _subject(case), _trained(case)
  # Clear preferences, which the first policies do not have.
  state = state._replace(params=parameters.draw(lambda: state.params))
  size = 1000 * (_NUM_ENVS + 2)
  env_id = np.arange(size) % (_NUM_ENVS + 2)
  observation = np.ones((size, 2), np.float32)
  if subject.has_tasks:
    observation = tasks.with_task(observation, np.ones(size, np.int32))
  step = types.AgentInput(
    observation=observation,
    reward=np.zeros(size, np.float32),
    previous_action=np.zeros(
      (size, *subject.action.shape), subject.action.dtype
    ),
    first=np.zeros(size, bool),
  )
  chex.clear_trace_counter()

  @jax.jit
  @chex.assert_max_traces(n=1)
  def act(*args):
    return subject.agent.act(*args)

  params, core = (
    subject.agent.acting_params(state),
    subject.agent.initial_core(size),
  )
  output, new_core = act(params, _KEY, step, core, env_id)
  chex.assert_trees_all_equal_shapes_and_dtypes(core, new_core)
  act(params, _KEY, step, new_core, env_id)
  action = np.asarray(output.action)
  evaluated, trained = action[env_id >= _NUM_ENVS], action[env_id < _NUM_ENVS]
  assert (evaluated == evaluated[0]).all()
  if subject.action.is_discrete:
    share = np.bincount(trained, minlength=3) / len(trained)
    assert np.argmax(share) == evaluated[0] and share.min() > 0.005
    assert share.max() > np.median(share) + 0.02
    expected = share
    if hasattr(output, 'policy_logits'):
      expected = jax.nn.softmax(output.policy_logits[0])
    elif hasattr(output, 'log_prob'):
      _, first = np.unique(action, return_index=True)
      expected = np.exp(output.log_prob[first])
    elif epsilon := jax.tree.leaves(getattr(params, 'epsilon', ())):
      # Random actions are the best one, too.
      expected = np.full(3, epsilon[0] / 3)
      expected[evaluated[0]] += 1 - epsilon[0]
    # Five standard errors.
    np.testing.assert_allclose(share, expected, atol=0.033)
  else:
    deviation = trained.std(0)
    assert (deviation > 1e-3).all()
    error = np.abs(np.median(trained, axis=0) - evaluated[0])
    # Five standard errors of a median of 6000.
    assert (error < 0.08 * deviation).all()
