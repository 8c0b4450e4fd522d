"""Tests PPO: advantages and loss against the papers, and its update."""

import contextlib
import copy
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from seedrl_jax import types
from seedrl_jax.agents import base, normalization, transitions
from seedrl_jax.agents.ppo import agent as agent_lib
from seedrl_jax.agents.ppo import keys as ppo_keys
from seedrl_jax.agents.ppo import loss as loss_lib
from seedrl_jax.configs import base as base_config
from seedrl_jax.learner import update
from seedrl_jax.networks import distributions, heads
from seedrl_jax.runtime import checkpoints
from tests import runs
from tests.agents import ppo_reference, sequences

_LENGTH, _BATCH = 7, 8
_CONTINUOUS = types.ActionSpec(
  (2,), np.dtype('float32'), (-1.0, -1.0), (1.0, 1.0)
)
_MIDDLE, _HALF = np.float32([150.0, -1.0]), np.float32([50.0, 2.0])
_SPECS = {
  'continuous': _CONTINUOUS,
  'scaled': _CONTINUOUS._replace(minimum=(100.0, -3.0), maximum=(200.0, 1.0)),
  'wider': _CONTINUOUS._replace(minimum=(100.0, -4.0), maximum=(200.0, 2.0)),
  'discrete': types.discrete(3),
}


def _env_spec(kind='continuous'):
  observation = types.ArraySpec((2,), np.dtype('float32'))
  return types.EnvSpec(
    types.StreamSpec(observation, _SPECS[kind], 1, 'toy'), _BATCH, 2
  )


def _config(**changes):
  config = base_config.get_config(ppo_keys.set_defaults)
  config.unroll_length, config.batch_size = _LENGTH, _BATCH
  config.epochs = config.minibatches = 1
  config.network.hidden_sizes = (8,)
  config.network.separate_baseline = True
  config.normalization.observations = config.normalization.rewards = True
  config.optimizer.schedule = 'constant'
  config.update_from_flattened_dict(changes)
  return config


_RECURRENT = {'network.lstm_size': 4, 'network.use_previous_action': True}


def _steps(rng, kind='continuous'):
  """Returns random steps whose log-probabilities are not the policy's."""
  steps = sequences.random_steps(rng, _LENGTH, _BATCH)
  shape = steps.reward.shape
  action = steps.agent_output.action
  previous = steps.previous_action
  if kind == 'continuous':
    action = rng.normal(size=(*shape, 2)).astype(np.float32)
    previous = action * (previous[..., None] > 0)
  log_prob = rng.normal(size=shape).astype(np.float32) - 2.0
  return steps._replace(
    previous_action=previous,
    agent_output=agent_lib.AgentOutput(action, log_prob),
  )


def _batch(agent, rng, steps=None):
  core = jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32),
    agent.initial_core(_BATCH),
  )
  return sequences.batch_of(_steps(rng) if steps is None else steps, core)


def _acted(agent, state, batch):
  """Returns the batch with the actions of `state`'s policy."""
  act, core = jax.jit(agent.act), batch.unroll.initial_core
  steps, outputs = batch.unroll.steps, []
  for t in range(_LENGTH + 1):
    step = jax.tree.map(lambda x, t=t: x[t], types.agent_input(steps))
    key = jax.random.key(t)
    params = agent.acting_params(state)
    output, core = act(params, key, step, core, np.arange(_BATCH))
    outputs.append(output)
  acted = jax.tree.map(lambda *x: np.stack(x), *outputs)
  steps = steps._replace(agent_output=acted)
  return batch._replace(unroll=batch.unroll._replace(steps=steps))


def _train(agent, num_devices=1):
  """Trains on random batches; returns the updater and the last state."""
  updater = update.Updater(agent, jax.devices()[:num_devices])
  first = update.initial_state(agent, jax.random.PRNGKey(0))
  state, rng = updater.replicate(first), np.random.default_rng(0)
  for _ in range(3):
    pieces = sequences.pieces_of(_batch(agent, rng), num_devices)
    state, output, *_ = updater(state, updater.shard(pieces), 0.0)
    assert output.finite
  return updater, state


@pytest.mark.parametrize('kind', ['continuous', 'discrete'])
@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'lambda_': 0.5, 'clip': 0.05, 'discount': 0.8, 'entropy_cost': 0.1},
    {'lambda_': 1.0, 'value_clip': 0.3, 'baseline_cost': 2.0},
    {'normalize_advantages': 'no', 'lambda_': 0.0},
    {'value_clip': 0.3, 'deviation': 3.0},
  ],
)
def test_equals_the_papers_sums(kind, changes):
  config, rng = _config().loss, np.random.default_rng(3)
  # Of PopArt, in whose units values are.
  deviation = changes.get('deviation', 1.0)
  config.update({k: x for k, x in changes.items() if k != 'deviation'})
  steps = _steps(rng, kind)
  old_values = rng.normal(size=(_LENGTH + 1, _BATCH)).astype(np.float32)
  shape = (_LENGTH, _BATCH)
  outputs = heads.ActorCriticOutput(
    policy=rng.normal(size=(*shape, 4 if kind == 'continuous' else 3)),
    baseline=old_values[:-1] + rng.normal(size=shape),
  )
  outputs = jax.tree.map(np.float32, outputs)
  formula = {
    'continuous': ppo_reference.gaussian,
    'discrete': ppo_reference.categorical,
  }[kind]
  scaled_config = copy.deepcopy(config)
  scaled_config.baseline_cost /= deviation**2
  scaled_config.value_clip *= deviation
  expected = ppo_reference.ppo(
    scaled_config, formula, *outputs, old_values, steps
  )

  def loss(outputs, steps):
    trajectory = transitions.from_steps(steps, discount=config.discount)
    advantage = loss_lib.advantages(trajectory, old_values, config.lambda_)
    weight = trajectory.valid / jnp.mean(trajectory.valid)
    scaled = advantage
    if config.normalize_advantages != 'no':
      scaled = loss_lib.normalized(advantage, weight)
    target = advantage + old_values[:-1]
    acted = jax.tree.map(lambda x: x[:-1], steps.agent_output)
    samples = loss_lib.Samples(weight, *acted, old_values[:-1], target, scaled)
    distribution = distributions.make(_SPECS[kind])
    value, metrics = loss_lib.ppo_loss(
      config, distribution, outputs, samples, deviation
    )
    return value, advantage, target, metrics

  *actual, metrics = jax.tree.map(
    lambda x: x[0],
    jax.vmap(loss, axis_name=base.AXIS)(
      *jax.tree.map(lambda x: x[None], (outputs, steps))
    ),
  )
  for a, b in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  valid = steps.step_type[1:] != types.StepType.FIRST
  assert not valid.all()
  acted = steps.agent_output
  log_prob, entropy = formula(outputs.policy, acted.action[:-1])
  ratio = np.exp(log_prob - acted.log_prob[:-1])
  for name, value in {
    'entropy': entropy,
    'rho': ratio,
    'kl': ratio - 1 - np.log(ratio),
    'rho_clipped_share': np.abs(ratio - 1) > config.clip,
  }.items():
    np.testing.assert_allclose(metrics[name], value[valid].mean(), rtol=1e-4)


class VariantsTest(parameterized.TestCase):
  @chex.all_variants()
  def test_truncation_bootstraps_and_termination_does_not(self):
    # Two environments, MID, LAST, FIRST, MID; the first is truncated.
    made = transitions.Transitions(
      valid=np.array([[1, 1], [0, 0], [1, 1]], bool),
      reward=np.array([[1, 1], [0, 0], [7, 7]], np.float32),
      discount=np.array([[0.5, 0], [0.0, 0.0], [0.5, 0.5]], np.float32),
    )
    values = np.array([[3, 3], [8, 8], [20, 20], [30, 30]], np.float32)
    advantages = functools.partial(loss_lib.advantages, lambda_=0.9)
    found = self.variant(advantages)(made, values)
    np.testing.assert_allclose(found, [[2, -2], [0, 0], [2, 2]])


@pytest.mark.parametrize('changes', [{}, _RECURRENT])
def test_first_step_on_fresh_data_is_the_policy_gradient(changes):
  config = _config(**{'loss.baseline_cost': 0.0, **changes})
  env_spec = _env_spec()
  agent = base.load_agent(config, env_spec)
  _, state = _train(agent)
  # With statistics, and a policy that depends on the observation.
  state = jax.tree.map(lambda x: x[0], jax.device_get(state.agent))
  assert state.observations[0].num and state.returns.num
  batch = _acted(agent, state, _batch(agent, np.random.default_rng(5)))
  steps, core = batch.unroll.steps, batch.unroll.initial_core
  ppo = agent.update.__self__

  def gradients(state):
    _, data, _ = ppo.prepare(state, state.returns, steps, core.network)
    (_, metrics), actual = jax.value_and_grad(ppo.loss, has_aux=True)(
      state.params, data
    )

    def objective(params):
      """The mean of -A log pi(a)."""
      inputs = ppo._normalize(state.observations, types.agent_input(steps))
      outputs, _ = ppo.module.apply({'params': params}, inputs, core.network)
      mean, log = jnp.split(outputs.policy[:-1], 2, axis=-1)
      deviation = 1e-3 + jnp.exp(log)
      z = (steps.agent_output.action[:-1] - mean) / deviation
      log_prob = -jnp.sum(0.5 * jnp.square(z) + jnp.log(deviation), axis=-1)
      advantage = data.samples.advantage.reshape(-1)
      if not changes:
        advantage = advantage.reshape(_LENGTH, _BATCH)
      else:
        advantage = advantage.reshape(_BATCH, _LENGTH).T
      valid = steps.step_type[1:] != types.StepType.FIRST
      return -jnp.sum(valid * advantage * log_prob) / jnp.sum(valid)

    return metrics, actual, jax.grad(objective)(state.params)

  metrics, actual, expected = jax.tree.map(
    lambda x: x[0],
    jax.jit(jax.vmap(gradients, axis_name=base.AXIS))(
      jax.tree.map(lambda x: x[None], state)
    ),
  )
  np.testing.assert_allclose(metrics['rho'], 1.0, atol=1e-5)
  np.testing.assert_allclose(metrics['kl'], 0.0, atol=1e-6)
  chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)
  assert max(np.abs(x).max() for x in jax.tree.leaves(actual)) > 1e-2


def test_minibatches_on_several_devices_stay_in_step():
  config = _config(epochs=3, minibatches=2, **_RECURRENT)
  agent = base.load_agent(config, _env_spec())
  assert agent.updates_per_batch == 6
  updater, state = _train(agent, 4)
  assert len(set(updater.fingerprints(state))) == 1
  counts = [x for x in jax.tree.leaves(state.agent) if x.dtype == np.int32]
  assert all((x == 3 * 6).all() for x in counts)


def test_update_normalises_and_learns_as_numpy_does():
  clip, prior = 1.5, 5.0
  config = _config(**{
    'normalization.observation_clip': clip,
    'normalization.reward_clip': clip,
    'network.min_deviation': 0.0,
    'loss.normalize_advantages': 'batch',
  })
  agent = base.load_agent(config, _env_spec())
  old = normalization.Statistics(prior, np.array([0.3, -2.0]), np.array([4, 9]))
  old_returns = normalization.Statistics(prior, 0.5, 2.0)
  state = jax.jit(agent.init)(jax.random.key(1))
  state = jax.tree.map(
    np.float32, state._replace(observations=(old,), returns=old_returns)
  )
  batch = _batch(agent, np.random.default_rng(2))
  new, output = _update_once(agent, state, batch)

  steps, core = batch.unroll.steps, batch.unroll.initial_core
  scaled = (steps.observation - old.mean) / np.sqrt(old.var)
  inputs = types.agent_input(
    steps._replace(observation=scaled.clip(-clip, clip))
  )
  module = agent.update.__self__.module
  outputs, _ = jax.jit(module.apply)(
    {'params': state.params}, inputs, core.network
  )
  first = steps.step_type == types.StepType.FIRST
  so_far, value = [], np.float64(core.discounted_return)
  for t in range(_LENGTH + 1):
    value = np.where(
      first[t], 0, config.loss.discount * value + steps.reward[t]
    )
    so_far.append(value)
  so_far = np.stack(so_far)[1:][~first[1:]]
  num = prior + so_far.size
  mean = (prior * 0.5 + so_far.sum()) / num
  var = (prior * (2.0 + 0.5**2) + (so_far**2).sum()) / num - mean**2
  np.testing.assert_allclose(
    [new.returns.num, new.returns.mean, new.returns.var],
    [num, mean, var],
    rtol=1e-5,
  )
  reward = (steps.reward / np.sqrt(var)).clip(-clip, clip)
  expected = ppo_reference.ppo(
    config.loss,
    ppo_reference.gaussian,
    outputs.policy[:-1],
    np.float64(outputs.baseline[:-1]),
    np.float64(outputs.baseline),
    steps._replace(reward=reward),
  )
  metrics = output.metrics
  np.testing.assert_allclose(metrics['total'], expected.loss, rtol=1e-4)
  np.testing.assert_allclose(
    metrics['value_target'], expected.target[~first[1:]].mean(), rtol=1e-4
  )
  assert new.observations[0].num == prior + _LENGTH * _BATCH


def _update_once(agent, state, batch):
  """Updates as on a single training device."""
  result = jax.jit(jax.vmap(agent.update, axis_name=base.AXIS))(
    *jax.tree.map(
      lambda x: jnp.asarray(x)[None],
      (state, batch, jax.random.key(0), jnp.float32(0)),
    )
  )
  return jax.tree.map(lambda x: np.asarray(x[0]), result)


def test_an_infinite_observation_spoils_no_statistics():
  agent = base.load_agent(_config(), _env_spec())
  state = jax.jit(agent.init)(jax.random.key(1))
  batch = _batch(agent, np.random.default_rng(2))
  assert _update_once(agent, state, batch)[1].finite
  # Of an episode that has terminated: no value is taken of it.
  batch.unroll.steps.step_type[-1] = types.StepType.LAST
  batch.unroll.steps.discount[-1] = 0.0
  batch.unroll.steps.observation[-1] = np.inf
  assert not _update_once(agent, state, batch)[1].finite


def test_stops_at_the_target_kl():
  def train(epochs, target):
    config = _config(**{
      'epochs': epochs,
      'loss.target_kl': target,
      'loss.normalize_advantages': 'batch',
      'optimizer.learning_rate': 0.1,
    })
    agent = base.load_agent(config, _env_spec())
    state = jax.jit(agent.init)(jax.random.key(1))
    batch = _acted(agent, state, _batch(agent, np.random.default_rng(5)))
    new, output = _update_once(agent, state, batch)
    return (new.params, new.opt_state), output.metrics

  params, metrics = train(4, 1e-3)
  # The first step is still with the policy that acted.
  assert metrics['skipped_share'] == 0.75
  once, _ = train(1, 0.0)
  chex.assert_trees_all_close(params, once, rtol=1e-5, atol=1e-6)
  params, metrics = train(4, 1e6)
  assert metrics['skipped_share'] == 0 and metrics['kl'] > 1e-3


def test_core_states_of_policy_and_baseline_can_be_donated():
  agent = base.load_agent(_config(**_RECURRENT), _env_spec())
  step = jax.jit(
    lambda core: jax.tree.map(jnp.negative, core), donate_argnums=0
  )
  assert len(jax.tree.leaves(step(agent.initial_core(2)))) == 5


def test_refuses_pieces_of_minibatches():
  with pytest.raises(ValueError, match='minibatches instead; give 1'):
    base.load_agent(_config(**{'learner.micro_batches': 2}), _env_spec())


def test_bounds_only_scale_the_actions():
  """An update is the same in the environment's units, apart from rounding."""
  config = _config(**_RECURRENT)
  plain, scaled = (
    base.load_agent(config, _env_spec(kind))
    for kind in ('continuous', 'scaled')
  )
  state = jax.jit(plain.init)(jax.random.key(0))
  batch = _batch(plain, np.random.default_rng(0))
  batch = _acted(plain, state, batch)
  steps = batch.unroll.steps
  previous = _MIDDLE + _HALF * steps.previous_action
  scaled_batch = batch._replace(
    unroll=batch.unroll._replace(steps=steps._replace(previous_action=previous))
  )
  scaled_batch = _acted(scaled, state, scaled_batch)
  output, expected = (
    x.unroll.steps.agent_output for x in (scaled_batch, batch)
  )
  np.testing.assert_allclose(
    output.action, _MIDDLE + _HALF * expected.action, rtol=1e-5
  )
  np.testing.assert_allclose(
    output.log_prob, expected.log_prob - np.log(_HALF).sum(), rtol=1e-3
  )
  (state, _), (scaled_state, _) = (
    _update_once(agent, state, b)
    for agent, b in ((plain, batch), (scaled, scaled_batch))
  )
  chex.assert_trees_all_close(scaled_state, state, rtol=1e-3, atol=1e-5)


def test_checkpoints_of_actions_scaled_otherwise_are_rejected(tmp_path):
  states = {
    kind: jax.jit(base.load_agent(_config(), _env_spec(kind)).init)(
      jax.random.key(0)
    )
    for kind in _SPECS
  }
  # An older one, of any action, has no scale.
  store = checkpoints.Checkpoints(tmp_path / 'checkpoints')
  older = states['scaled']._replace(action_scale=())
  store.save(1, older, {})
  for kind in ('continuous', 'scaled'):
    rejects = pytest.raises(
      checkpoints.CheckpointMismatch,
      match=r'n: action_scale\.middle \[1.*half .* in the configuration\. Use',
    )
    with rejects if kind == 'scaled' else contextlib.nullcontext():
      assert store.restore(states[kind]) is not None
  assert states['discrete'].action_scale == ()
  store.save(2, states['scaled'], {})
  assert store.restore(states['scaled']) is not None
  with pytest.raises(
    checkpoints.CheckpointMismatch, match=r'-1\.0\], half \[5'
  ):
    store.restore(states['wider'])


def _reach(**values):
  config = base_config.get_config(ppo_keys.set_defaults)
  config.epochs, config.minibatches = 4, 4
  config.network.hidden_sizes = (16,)
  config.network.activation = 'tanh'
  config.normalization.observations = config.normalization.rewards = True
  config.optimizer.learning_rate = 3e-3
  runs.set_keys(
    config,
    **{
      'env.factory': 'tests.agents.continuous:reach',
      'env.num_envs': 8,
      'num_eval_envs': 4,
      'unroll_length': 16,
      'batch_size': 8,
      'topology.max_devices': 1,
      'log.writers': ('csv',),
      'log.every_seconds': 0.01,
      'replay.backend': 'embedded',
      'loss.discount': 0.5,
      **values,
    },
  )
  return config


def test_run_learns_resumes_and_counts_training_only(tmp_path):
  first = runs.Run(_reach(total_env_frames=20_000), tmp_path)
  first.train()
  state = first.system.parts.learner.state()
  run = runs.Run(_reach(total_env_frames=40_000), tmp_path)
  assert 'Resuming' in run.output
  chex.assert_trees_all_equal(state, run.initial_state)
  summary = run.train()
  # The mean action of the last policy, out of 8.
  assert summary['eval_mean_return'] > 6.0
  assert set(runs.rows(tmp_path)[-1]) <= runs.documented_columns()
  last = run.system.parts.learner.state().agent
  (observations,) = last.observations
  assert observations.num == summary['updates'] / 16 * 8 * 16
  # Goals are uniform in [-0.8, 0.8].
  np.testing.assert_allclose(observations.mean, 0.0, atol=0.02)
  np.testing.assert_allclose(observations.var, 0.64 / 3, rtol=0.03)
  # Every ninth step is the first of an episode.
  np.testing.assert_allclose(
    last.returns.num, observations.num * 8 / 9, rtol=0.01
  )
  device = run.system.parts.plan.topology.inference[0]
  _, published = run.system.parts.publisher.latest(device)
  chex.assert_trees_all_equal(published.observations[0], observations)
