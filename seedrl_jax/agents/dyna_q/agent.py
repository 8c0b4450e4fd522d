"""The Deep Dyna-Q agent: DQN, a world model, and transitions it imagines.

All of it is one loss, so that an update is one gradient step. The Q part is
R2D2's module without memory.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections

from seedrl_jax import types
from seedrl_jax.agents import base, exploration, sgd
from seedrl_jax.agents import transitions as transitions_lib
from seedrl_jax.agents.dyna_q import loss as loss_lib
from seedrl_jax.agents.dyna_q import model as model_lib
from seedrl_jax.agents.r2d2 import agent as r2d2
from seedrl_jax.networks import network as network_lib


def make_agent(config: types.Config, env_spec: types.EnvSpec) -> base.Agent:
  """Makes the agent; without imagined transitions it is R2D2's.

  Raises ValueError if a config value or the environment does not fit.
  """
  _check(config, env_spec)
  q_agent = r2d2.make_agent(config, env_spec)
  if not config.planning.ratio:
    return q_agent
  model = model_lib.Model(
    ml_collections.FrozenConfigDict(config.model),
    env_spec.action.num_values,
    model_lib.mask_size(env_spec),
  )
  # Imagined transitions come one by one, so that their targets have one step.
  single = config.copy_and_resolve_references()
  single.lookahead = 0
  single_loss = r2d2.make_agent(single, env_spec).trainer.loss
  trainer = dataclasses.replace(
    q_agent.trainer,
    loss=Loss(config, env_spec, q_agent, single_loss, model),
    keeps_progress=True,
  )

  def init(key: jax.Array) -> sgd.TrainState:
    observation = network_lib.dummy_inputs(env_spec).observation
    state = model_lib.from_observation(env_spec, observation)[0]
    variables = model.init(
      jax.random.fold_in(key, 1), state, jnp.zeros((1,), jnp.int32)
    )
    # The values begin as they do without a model.
    q = q_agent.init(key).params
    return trainer.init({'q': q, 'model': variables['params']})

  def acting_params(state: sgd.TrainState) -> base.Params:
    return q_agent.acting_params(state._replace(params=state.params['q']))

  return dataclasses.replace(
    q_agent,
    init=init,
    acting_params=acting_params,
    update=trainer.update,
    trainer=trainer,
  )


def _check(config: types.Config, env_spec: types.EnvSpec) -> None:
  if env_spec.stream.tasks:
    raise ValueError(
      '--config.agent=dyna_q: its model cannot tell the tasks of '
      '--config.env.tasks apart; give one --config.env.id, or take r2d2.'
    )
  specs = list(model_lib.vector_specs(env_spec).values())
  is_vector = [types.is_spec(x) and len(x.shape) == 1 for x in specs] == [True]
  if not (is_vector and jnp.issubdtype(specs[0].dtype, jnp.floating)):
    raise ValueError(
      f'--config.agent=dyna_q: an observation of {env_spec.env_id} is not one '
      'vector of floats (and an action mask), which is all that its model can '
      'predict; take r2d2.'
    )
  fixed = {
    'unroll_length': 1,
    'burn_in': 0,
    'network.lstm_size': 0,
    'network.frame_stack': 1,
    'network.use_previous_action': False,
  }
  reason = 'the model of dyna_q predicts from single observations'
  base.check_fixed(config, fixed, reason)


# Compared by identity, as JAX hashes what it compiles.
@dataclasses.dataclass(frozen=True, eq=False)
class Loss:
  """The loss of a batch, an `sgd.LossFn`.

  The sum of the model's loss and of the TD losses of real and of imagined
  transitions, each divided by the number of real ones.
  """

  config: types.Config
  env_spec: types.EnvSpec
  q_agent: base.Agent
  single_loss: sgd.LossFn  # of the values, on single transitions
  model: model_lib.Model

  def __call__(
    self,
    params: base.Params,
    target_params: base.Params,
    batch: types.Batch,
    key: jax.Array,
    progress: types.Nest = (),
  ) -> tuple[jax.Array, sgd.LossOutput]:
    """See `sgd.LossFn`; parameters have the parts 'q' and 'model'."""
    planning, steps = self.config.planning, batch.unroll.steps
    state = model_lib.from_observation(self.env_spec, steps.observation)
    steps = steps._replace(observation=state)
    q, target_q = params['q'], target_params['q']
    q_loss, output = self.q_agent.trainer.loss(
      q, target_q, batch, key, progress
    )
    loss, metrics = loss_lib.model_loss(
      self.config.model, self._predictor(params), steps, batch.weight
    )
    # Rollouts train neither the model nor the policy that chooses in them.
    fixed = jax.lax.stop_gradient(params)
    predict = self._predictor(fixed)
    # As far as sequences go.
    real = jax.tree.map(lambda x: x[: planning.rollout_length + 1], steps)
    error = loss_lib.rollout_error(predict, real)
    metrics |= {**output.metrics, 'model_rollout': error}
    if planning.role == 'act':
      # The errors of a model that others train.
      return q_loss, output._replace(metrics=metrics)
    policy = functools.partial(self._act, fixed['q'], progress)
    imagined_steps = self._imagine(
      predict, policy, steps, output.priorities, key, progress
    )
    imagined, imagined_metrics = self._imagined_loss(
      q, target_q, imagined_steps, batch.weight.size
    )
    loss += planning.learning_rate_scale * imagined
    if planning.role == 'both':
      loss += q_loss
    metrics |= {**imagined_metrics, 'q_loss': q_loss}
    return loss, output._replace(metrics=metrics)

  def _predictor(self, params: base.Params) -> model_lib.PredictFn:
    apply: Any = self.model.apply
    return functools.partial(apply, {'params': params['model']})

  def _imagine(
    self,
    predict: model_lib.PredictFn,
    policy: loss_lib.PolicyFn,
    steps: types.Steps,
    td_errors: jax.Array,
    key: jax.Array,
    progress: jax.Array,
  ) -> types.Steps:
    """Returns imagined transitions `[2, N]`; `td_errors` are absolute."""
    planning = self.config.planning
    valid = transitions_lib.from_steps(steps, discount=1.0).valid[0]
    start_key, key = jax.random.split(key)
    if planning.start_states == 'uniform':
      td_errors = jnp.ones_like(td_errors)
    rollouts = round(planning.ratio * valid.size / planning.rollout_length)
    starts = loss_lib.draw_starts(start_key, td_errors, valid, max(1, rollouts))
    is_planning = (
      progress * self.config.total_env_frames >= planning.start_frames
    )
    imagined = loss_lib.imagine(
      predict,
      policy,
      steps.observation[0][starts],
      valid[starts] & is_planning,
      key,
      planning.rollout_length,
    )
    observation = model_lib.to_observation(self.env_spec, imagined.observation)
    return imagined._replace(observation=observation)

  def _act(
    self, q: base.Params, progress: jax.Array, key: jax.Array, state: jax.Array
  ) -> jax.Array:
    """Chooses legal actions of rollouts, `[N]`."""
    count = len(state)
    if self.config.planning.actions == 'random':
      return exploration.uniform(key, model_lib.legal(self.env_spec, state))
    observation = model_lib.to_observation(self.env_spec, state)
    none = jnp.zeros((count,))
    output, _ = self.q_agent.act(
      self.q_agent.acting_params(
        sgd.TrainState(q, (), (), jnp.int32(0), progress)
      ),
      key,
      types.AgentInput(observation, none, none.astype(jnp.int32), none > 0),
      self.q_agent.initial_core(count),
      # Training environments may differ in epsilon.
      jnp.arange(count) % self.env_spec.num_envs,
    )
    return output.action

  def _imagined_loss(
    self,
    q: base.Params,
    target_q: base.Params,
    steps: types.Steps,
    num_real: int,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the TD loss of imagined transitions `[2, N]`, and metrics."""
    count = steps.reward.shape[1]
    core = self.q_agent.initial_core(count)
    env_id = jnp.zeros((count,), jnp.int32)
    batch = types.Batch(types.Unroll(steps, core, env_id), jnp.ones((count,)))
    mean, output = self.single_loss(q, target_q, batch, jax.random.key(0), ())
    valid = transitions_lib.from_steps(steps, discount=1.0).valid[0]
    reward, num_imagined = steps.reward[1], jnp.sum(valid)
    return mean * count / num_real, {
      'imagined_q_loss': mean * count / num_real,
      'imagined_td_error': output.metrics['td_error'],
      'imagined_reward': transitions_lib.mean_of_valid(reward, valid),
      'imagined_share': num_imagined / (num_imagined + num_real),
    }
