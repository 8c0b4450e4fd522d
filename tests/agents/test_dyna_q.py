"""Tests Dyna-Q: model, rollouts and their targets against NumPy; DQN in it."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from seedrl_jax import types
from seedrl_jax.agents import base
from seedrl_jax.agents.dyna_q import keys as dyna_q_keys
from seedrl_jax.agents.dyna_q import loss as loss_lib
from seedrl_jax.agents.dyna_q import model as model_lib
from seedrl_jax.configs import base as base_config
from seedrl_jax.configs import dyna_q_cartpole
from tests import runs
from tests.agents import dyna_q_reference as reference
from tests.agents import r2d2_reference, r2d2_sequences, sequences
from tests.networks import parameters

_KEY = jax.random.key(0)
_ENV_SPEC = r2d2_sequences.ENV_SPEC
_MASK = types.ArraySpec((1, 3), np.dtype(np.int8))
_MASKED_SPEC = _ENV_SPEC._replace(
  stream=_ENV_SPEC.stream._replace(
    observation={'mask': _MASK, 'x': _ENV_SPEC.observation}, action_mask='mask'
  )
)
_FIRST, _MID, _LAST = types.StepType


def _config(**changes):
  config = base_config.get_config(dyna_q_keys.set_defaults)
  config.network.hidden_sizes = (8,)
  config.total_env_frames = 1000
  config.planning.start_frames = 500
  config.exploration.decay_frames = 100
  config.exploration.final_epsilon = 0.0
  config.loss.target_update_period = 2
  config.update_from_flattened_dict(changes)
  return config


@functools.cache
def _agent(masked=False, **changes):
  spec = _MASKED_SPEC if masked else _ENV_SPEC
  return base.load_agent(_config(**changes), spec)


def _params(agent, seed=0):
  params = parameters.draw(lambda key: agent.init(key).params, _KEY, seed=seed)
  # Some rollouts go on, not all, and some choices are legal.
  masked = 'mask' in params['model']
  params['model']['termination']['bias'] += 1.4 if masked else -0.5
  if masked:
    params['model']['mask']['bias'] -= 0.6
  return params


def _batch(seed=0, masked=False):
  """Returns sequences of three transitions with ends at every step."""
  rng = np.random.default_rng(seed)
  steps = r2d2_sequences.steps_with_ends(rng, 3)
  if masked:
    mask = rng.integers(0, 2, (*steps.reward.shape, 3))
    mask |= np.eye(3, dtype=int)[steps.agent_output.action]
    # No choice is left at termination.
    mask *= steps.discount[..., None] > 0
    mask = mask[..., None, :].astype(np.int8)
    steps = steps._replace(observation={'mask': mask, 'x': steps.observation})
  weight = rng.uniform(0.1, 1.0, steps.reward.shape[1]).astype(np.float32)
  core = _agent().initial_core(weight.size)
  return sequences.batch_of(steps, core)._replace(weight=weight)


@functools.cache
def _compiled(agent):
  return jax.jit(jax.value_and_grad(agent.trainer.loss, has_aux=True))


def _loss(agent, progress=1.0, batch=None):
  """Returns ((loss, output), gradient), with another target network."""
  params = (_params(agent, seed) for seed in (0, 1))
  return _compiled(agent)(
    *params, batch or _batch(), _KEY, np.float32(progress)
  )


def _updated(agent, progress=1.0):
  """Returns the first state, the one after updates, and priorities."""
  first = state = jax.tree.map(lambda x: x[None], jax.jit(agent.init)(_KEY))
  update = jax.jit(
    jax.vmap(agent.update, in_axes=(0, 0, None, None), axis_name=base.AXIS)
  )
  priorities = []
  for i in range(4):
    batch = jax.tree.map(lambda x: jnp.asarray(x)[None], _batch(seed=i))
    state, output = update(state, batch, _KEY, jnp.float32(progress))
    assert output.finite.all()
    priorities.append(output.priorities)
  first, state = jax.tree.map(lambda x: x[0], (first, state))
  return first, state, priorities


def _predict(params):
  agent = _agent(masked='mask' in params)
  return functools.partial(agent.trainer.loss.model.apply, {'params': params})


def _with_states(steps):
  """Returns steps as the model takes them."""
  spec = _MASKED_SPEC if isinstance(steps.observation, dict) else _ENV_SPEC
  state = model_lib.from_observation(spec, steps.observation)
  back = model_lib.to_observation(spec, state)
  chex.assert_trees_all_equal(back, steps.observation)
  return steps._replace(observation=np.asarray(state))


def _model_loss(params, batch, config=None):
  return loss_lib.model_loss(
    config or _config().model,
    _predict(params),
    _with_states(batch.unroll.steps),
    batch.weight,
  )


def test_model_has_the_layers_of_the_study():
  shapes = jax.eval_shape(_agent().init, _KEY).params['model']
  assert [x.shape for x in jax.tree.leaves(shapes) if x.ndim == 2] == [
    *((3, 1), (65, 2)),  # action, change
    *((65, 65), (65, 65)),
    *((2, 64), (65, 1), (65, 1)),  # observation, reward, termination
  ]


@pytest.mark.parametrize('masked', [False, True])
def test_model_loss_and_errors_equal_numpy(masked):
  params, batch = _params(_agent(masked))['model'], _batch(masked=masked)
  steps, weight = _with_states(batch.unroll.steps), batch.weight
  parts, far, total = [], [], 0.0
  for b in range(weight.size):
    observation = steps.observation[0, b]
    for t, action in enumerate(steps.agent_output.action[:-1, b]):
      observation, reward, ends, legal = reference.predict(
        params, observation, action
      )
      x, mask = np.split(steps.observation[t + 1, b], [2])
      error = np.mean((observation[:2] - x) ** 2)
      if t == 0 and steps.step_type[1, b] != _FIRST:
        # A truncation is no termination.
        p = ends if steps.discount[1, b] == 0 else 1 - ends
        squared = (reward - steps.reward[1, b]) ** 2
        parts.append([error, 0.25 * squared, -np.log(p)])
        if masked:
          log_p = np.log(np.where(mask > 0, legal, 1 - legal)).mean()
          parts[-1].append(-log_p * steps.discount[1, b])
        total += weight[b] * sum(parts[-1])
    if (steps.step_type[1:, b] != _FIRST).all():
      far.append(error)
  assert 5 < len(far) < len(parts) < weight.size
  config = _config(**{'model.reward_scale': 0.5}).model
  loss, metrics = _model_loss(params, batch, config)
  np.testing.assert_allclose(loss, total / weight.size, rtol=1e-4)
  names = ['model_observation', 'model_reward', 'model_termination']
  names += ['model_mask'] * masked
  expected = dict(zip(names, np.mean(parts, axis=0), strict=True))
  chex.assert_trees_all_close(metrics, expected, rtol=1e-4)
  error = loss_lib.rollout_error(_predict(params), steps)
  np.testing.assert_allclose(error, np.mean(far), rtol=1e-4)


def _linear_system(rng, size):
  """Returns a batch of a known system whose episodes end where x_0 > 1."""
  drift = np.array([[0.9, 0.2], [-0.2, 0.9]])
  push = np.array([[0.5, 0], [-0.5, 0], [0, 0.5]])
  steps = r2d2_sequences.random_steps(rng, 3, size)
  action, x = steps.agent_output.action, [rng.uniform(-1, 1, (size, 2))]
  for a in action[:-1]:
    x.append(x[-1] @ drift + push[a])
  x = np.stack(x).astype(np.float32)
  reward = np.zeros_like(steps.reward)
  reward[1:] = x[:-1, :, 1] + action[:-1]
  steps = steps._replace(
    observation=x,
    reward=reward,
    discount=np.where(x[..., 0] > 1, 0, 1).astype(np.float32),
    step_type=np.full_like(steps.step_type, _MID),
  )
  return sequences.batch_of(steps, _agent().initial_core(size))


def test_learns_a_linear_system():
  agent = _agent(**{
    'planning.role': 'model',
    'planning.ratio': 1e-3,
    'optimizer.learning_rate': 5e-3,
    'optimizer.epsilon': 1e-8,
  })
  rng = np.random.default_rng(0)
  data = [_linear_system(rng, 128) for _ in range(20)]
  data = jax.tree.map(lambda *x: jnp.stack(x), *data)

  def step(state, i):
    batch = jax.tree.map(lambda x: x[i % 20], data)
    state, output = agent.update(state, batch, _KEY, jnp.float32(0.0))
    return state, output.metrics

  @functools.partial(jax.vmap, axis_name=base.AXIS)
  def train(state):
    return jax.lax.scan(step, state, jnp.arange(800))

  state = jax.jit(agent.init)(_KEY)
  state, metrics = jax.jit(train)(jax.tree.map(lambda x: x[None], state))
  for name in ('observation', 'reward', 'termination', 'rollout'):
    losses = metrics[f'model_{name}'][0]
    assert losses[-20:].mean() < 0.1 * losses[:20].mean(), name
  fresh = _linear_system(rng, 500).unroll.steps
  params = jax.tree.map(lambda x: x[0], state.params['model'])
  predicted = _predict(params)(
    fresh.observation[0], fresh.agent_output.action[0]
  )
  assert np.abs(predicted.observation - fresh.observation[1]).mean() < 0.05
  assert np.abs(predicted.reward - fresh.reward[1]).mean() < 0.05
  ends = predicted.termination > 0
  assert (ends == (fresh.discount[1] == 0)).mean() > 0.95


_ALL_CHANGED = {
  'loss.double_q': True,
  'loss.huber_delta': 0.5,
  'loss.reward_clip': 0.3,
  'loss.rescale_epsilon': 1e-3,
  'loss.n_steps': 3,
  'planning.ratio': 2.6,
  'planning.rollout_length': 2,
  'planning.start_states': 'prioritized',
  'planning.learning_rate_scale': 0.3,
  'planning.role': 'model',
}


@pytest.mark.parametrize(
  ('changes', 'masked'),
  [
    ({'planning.ratio': 2.0}, False),
    ({'planning.ratio': 2.0}, True),
    (_ALL_CHANGED, False),
    (_ALL_CHANGED, True),
  ],
)
def test_losses_equal_numpy(changes, masked):
  """With an epsilon of 0, so that actions are known."""
  changes = {**changes, 'planning.actions': 'epsilon_greedy'}
  config, agent = _config(**changes), _agent(masked, **changes)
  batch, planning = _batch(masked=masked), config.planning
  steps, width = _with_states(batch.unroll.steps), len(batch.weight)
  params, target = _params(agent), _params(agent, seed=1)
  (loss, output), _ = _loss(agent, batch=batch)
  q, target_q = (
    reference.q_values(p['q'], steps.observation) for p in (params, target)
  )
  real = r2d2_reference.td_errors(config.loss, q, target_q, steps, 1)
  sizes = np.float32([abs(e.get(0, 0.0)) for e in real])
  np.testing.assert_allclose(output.priorities, sizes, rtol=1e-3, atol=1e-5)
  if planning.start_states == 'uniform':
    sizes = np.ones(width)
  count = round(planning.ratio * width / planning.rollout_length)
  valid = steps.step_type[1] != _FIRST
  starts = loss_lib.draw_starts(
    jax.random.split(_KEY)[0], jnp.asarray(sizes), valid, count
  )
  imagined = reference.rollouts(
    params, steps.observation[0][starts], planning.rollout_length
  )
  # Some, not all, end early.
  assert count < len(imagined) < planning.rollout_length * count
  # Some choices are illegal, not all.
  assert not masked or 0 < np.mean([x.after[2:] for x in imagined]) < 1
  errors = reference.td_errors(config.loss, params['q'], target['q'], imagined)
  model_loss, expected = _model_loss(params['model'], batch)
  real_steps = jax.tree.map(lambda x: x[: planning.rollout_length + 1], steps)
  expected |= {
    'model_rollout': loss_lib.rollout_error(
      _predict(params['model']), real_steps
    ),
    'q_loss': r2d2_reference.loss(config.loss, real, batch.weight, 1),
    'imagined_q_loss': reference.loss(config.loss, errors, width),
    'imagined_td_error': np.abs(errors).mean(),
    'imagined_reward': np.mean([x.reward for x in imagined]),
    'imagined_share': len(imagined) / (len(imagined) + width),
  }
  metrics = {name: output.metrics[name] for name in expected}
  chex.assert_trees_all_close(metrics, expected, rtol=1e-3)
  scale = planning.learning_rate_scale
  total = model_loss + scale * expected['imagined_q_loss']
  if planning.role == 'both':
    total += expected['q_loss']
  np.testing.assert_allclose(loss, total, rtol=1e-3)


def test_rollout_ends_where_termination_is_predicted():
  def predict(observation, action):
    # Counts up; certain from 2 on, at even odds at 1.
    after = observation + 1.0 + 10.0 * action[:, None]
    return model_lib.Prediction(
      observation=after,
      mask=after[:, :0],
      reward=5.0 * after[:, 0],
      termination=after[:, 0] - 2.0,
    )

  def policy(key, observation):
    return (observation[:, 0] < -10).astype(jnp.int32)

  starts = np.array([[1.0], [0.0], [-20.0], [-3.0]], np.float32)
  valid = np.array([True, True, True, False])
  imagined = jax.jit(
    lambda: loss_lib.imagine(predict, policy, starts, valid, _KEY, 3)
  )()
  by_time = jax.tree.map(
    lambda x: np.asarray(x).reshape((2, 3, 4, -1)), imagined
  )
  np.testing.assert_array_equal(
    by_time.observation[..., 0],
    [
      [[1, 0, -20, -3], [2, 1, -9, -3], [2, 2, -8, -3]],
      [[2, 1, -9, -3], [2, 2, -8, -3], [2, 2, -7, -3]],
    ],
  )
  np.testing.assert_array_equal(
    by_time.step_type[1, ..., 0],
    [
      [_LAST, _MID, _MID, _FIRST],
      [_FIRST, _LAST, _MID, _FIRST],
      [_FIRST, _FIRST, _MID, _FIRST],
    ],
  )
  alive = by_time.step_type[1] != _FIRST
  np.testing.assert_array_equal(by_time.discount[1][alive], [0, 1, 1, 0, 1, 1])
  np.testing.assert_array_equal(
    by_time.reward[1][alive], [10, 5, -45, 10, -40, -35]
  )
  np.testing.assert_array_equal(
    by_time.agent_output.action[0, :, 2, 0], [1, 0, 0]
  )
  assert (by_time.step_type[0] == _MID).all()


@pytest.mark.parametrize(
  ('priorities', 'valid', 'expected'),
  [
    ([1.0, 3.0, 0.0, 4.0], [1, 1, 1, 0], [0.25, 0.75, 0, 0]),
    ([1.0, 1.0, 1.0, 1.0], [0, 1, 1, 0], [0, 0.5, 0.5, 0]),
    ([0.0, 0.0, 0.0, 0.0], [1, 0, 1, 0], [0.5, 0, 0.5, 0]),
  ],
)
def test_start_states_are_drawn_by_priority(priorities, valid, expected):
  starts = loss_lib.draw_starts(
    _KEY, jnp.float32(priorities), np.array(valid, bool), 10_000
  )
  share = np.bincount(starts, minlength=4) / 10_000
  # Six standard errors.
  np.testing.assert_allclose(share, expected, atol=0.03)
  np.testing.assert_array_equal(share[np.array(expected) == 0], 0.0)


def test_nothing_is_imagined_without_a_transition():
  batch = _batch()
  steps = batch.unroll.steps
  none = np.full_like(steps.step_type, _FIRST)
  steps = steps._replace(step_type=none)
  batch = batch._replace(unroll=batch.unroll._replace(steps=steps))
  (loss, output), _ = _loss(_agent(), batch=batch)
  assert loss == 0 and output.metrics['imagined_share'] == 0


def test_imagines_from_start_frames_on():
  (_, before), gradient = _loss(_agent(), progress=0.49)
  (_, after), with_imagined = _loss(_agent(), progress=0.5)
  assert before.metrics['imagined_share'] == 0
  assert before.metrics['imagined_q_loss'] == 0
  assert after.metrics['imagined_share'] > 0.2
  _, real = _loss(_agent(**{'planning.role': 'act'}))
  chex.assert_trees_all_close(gradient['q'], real['q'], atol=1e-6)
  chex.assert_trees_all_equal(gradient['model'], with_imagined['model'])


def test_roles_share_the_work():
  agents = [_agent(**{'planning.role': x}) for x in ('both', 'act', 'model')]
  outputs, (both, act, model) = zip(*map(_loss, agents), strict=True)
  chex.assert_trees_all_close(
    both['q'], jax.tree.map(jnp.add, act['q'], model['q']), atol=1e-5
  )
  # Imagined transitions do not train the model, and all parameters learn.
  chex.assert_trees_all_close(both['model'], model['model'], atol=1e-6)
  assert all(np.abs(x).max() > 0 for x in jax.tree.leaves((act['q'], model)))
  assert not any(x.any() for x in jax.tree.leaves(act['model']))
  priorities = [output.priorities for _, output in outputs]
  chex.assert_trees_all_close(*priorities, rtol=1e-6)
  # All of them know the model's errors.
  names = ('observation', 'reward', 'termination', 'rollout')
  errors = [[x.metrics[f'model_{n}'] for n in names] for _, x in outputs]
  chex.assert_trees_all_close(*errors, rtol=1e-6)


def test_acting_alone_is_dqn_and_leaves_the_model():
  first, state, _ = _updated(_agent(**{'planning.role': 'act'}))
  _, dqn, _ = _updated(_agent(agent='r2d2'))
  for mine, others in (
    (state.params, dqn.params),
    (state.target_params, dqn.target_params),
  ):
    chex.assert_trees_all_close(mine['q'], others, atol=1e-6)
  chex.assert_trees_all_equal(first.params['model'], state.params['model'])


@pytest.mark.parametrize(
  ('mask', 'expected'),
  [
    ((), (1 / 3, 1 / 3, 1 / 3)),
    ((1, 0, 1), (1 / 2, 0, 1 / 2)),
    # The model may predict that nothing is legal.
    ((0, 0, 0), (1 / 3, 1 / 3, 1 / 3)),
  ],
)
def test_random_actions_are_uniform(mask, expected):
  loss = _agent(masked=bool(mask)).trainer.loss
  state = jnp.tile(jnp.float32([0, 0, *mask]), (3000, 1))
  share = np.bincount(loss._act((), jnp.float32(1.0), _KEY, state)) / 3000
  np.testing.assert_allclose(share, expected, atol=0.05)


def test_without_imagined_transitions_it_is_dqn_to_the_bit():
  agents = _agent(**{'planning.ratio': 0.0}), _agent(agent='r2d2')
  results = [_updated(agent, progress=0.05) for agent in agents]
  observation = np.random.default_rng(0).normal(size=(50, 2)).astype('f4')
  none = np.zeros(50, np.int32)
  step = types.AgentInput(observation, 0.0 * none, none, none > 0)
  outputs = [
    jax.jit(agent.act)(
      agent.acting_params(state), _KEY, step, agent.initial_core(50), none
    )
    for agent, (_, state, _) in zip(agents, results, strict=True)
  ]
  chex.assert_trees_all_equal(*zip(results, outputs, strict=True))
  # With a model the values begin alike, and only they are published.
  first = jax.jit(_agent().init)(_KEY)
  chex.assert_trees_all_equal(first.params['q'], results[1][0].params)
  assert _agent().acting_params(first).network is first.params['q']


@pytest.mark.parametrize(
  ('changes', 'env', 'words'),
  [
    ({'unroll_length': 4}, {}, r'unroll_length=4.*give 1'),
    ({'burn_in': 2}, {}, r'burn_in=2.*give 0'),
    ({'network.lstm_size': 4}, {}, r'network\.lstm_size=4.*give 0'),
    ({'network.frame_stack': 2}, {}, r'network\.frame_stack=2.*give 1'),
    (
      {'network.use_previous_action': True},
      {},
      r'network\.use_previous_action=True.*give False',
    ),
    (
      {},
      {'observation': types.ArraySpec((8, 8, 3), np.dtype(np.uint8))},
      'not one vector of floats.*take r2d2',
    ),
    (
      {},
      {'observation': {'a': _ENV_SPEC.observation}},
      'not one vector of floats',
    ),
    (
      {},
      {
        'observation': {'a': _MASK, **_MASKED_SPEC.observation},
        'action_mask': 'mask',
      },
      'not one vector of floats',
    ),
    ({}, {'tasks': ('a', 'b')}, r'--config\.env\.tasks apart; .*take r2d2'),
  ],
)
def test_says_what_it_cannot_do(changes, env, words):
  spec = types.EnvSpec(_ENV_SPEC.stream._replace(**env), 6, 2)
  with pytest.raises(ValueError, match=f'^--config.*{words}.*[^.]*\\.$'):
    base.load_agent(_config(**changes), spec)


def test_run_logs_what_the_documentation_says(tmp_path):
  config = runs.tiny(
    dyna_q_cartpole.get_config,
    **{
      'env__id': 'CartPole-v1',
      'unroll_length': 1,
      'replay__min_size': 50,
      'replay__samples_per_insert': 2.0,
      'planning__start_frames': 200,
      'log__every_seconds': 0.2,
    },
  )
  runs.Run(config, tmp_path).train()
  last = runs.rows(tmp_path)[-1]
  assert last.keys() <= runs.documented_columns()
  assert float(last['losses/model_rollout']) > 0
  assert float(last['losses/imagined_share']) > 0
