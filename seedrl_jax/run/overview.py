"""Describes a run in the lines that its start prints."""

import math
import pathlib

import jax

from seedrl_jax import types
from seedrl_jax.networks import observations
from seedrl_jax.replay import device as device_replay
from seedrl_jax.run import opening
from seedrl_jax.run import plan as plan_lib
from seedrl_jax.runtime import progress

# Batches. The importance weights of older steps leave little to learn from.
_MOST_LAG = 8.0


def lines(
  config: types.Config, parts: opening.Parts, workdir: pathlib.Path
) -> list[str]:
  """Returns a line each on environment, agent, store, and what may go wrong."""
  plan = parts.plan
  lag = expected_lag(plan)
  texts = [
    f'Environment: {_environment(config, parts)}.',
    f'Agent: {_agent(config, plan, lag)}.',
    f'Store: {_store(config, parts)}; {plan.topology.describe()}; writes to '
    f'{workdir}',
    lag_warning(lag),
    decay_warning(config),
  ]
  return [text for text in texts if text]


def expected_lag(plan: plan_lib.Plan) -> float | None:
  """Returns the expected mean policy lag of a run with a queue, in batches.

  An unroll is under way, in the queue, or on the devices ahead of the update.
  If all these places are full, a step waits for as many batches as they hold;
  if the learner is fast, for few. So this is half of what they hold, and off by
  as much as half of the queue and of what is prefetched.

  None for a replay, and without a shared batch.
  """
  config, learner = plan.config, plan.config.learner
  if config.replay.sampler != 'fifo' or not plan.placement.shares_batch:
    return None
  # Waits that grow with the batch, in batches, and others, in unrolls.
  ahead = (learner.publish_period - 1) / plan.agent.updates_per_batch
  unrolls = sum(share.num_train for share in plan.shares)
  if plan.lock_step:
    # Acts only when nothing is left to train on.
    ahead -= 1
  else:
    ahead += learner.prefetch
    if config.replay.max_size is None:
      ahead += 2
    else:
      unrolls += config.replay.max_size
  lag = max(0.0, (unrolls / config.batch_size + ahead) / 2)
  return lag if learner.max_lag is None else min(lag, learner.max_lag)


def lag_warning(lag: float | None) -> str:
  """Returns a sentence on an expected policy lag, '' if that is acceptable."""
  if lag is None or lag <= _MOST_LAG:
    return ''
  return (
    f'Warning: this run may train off-policy: steps are about {lag:.0f} '
    'batches old when they are trained on. Raise --config.batch_size, or lower '
    '--config.env.num_envs, --config.learner.publish_period, '
    '--config.learner.prefetch or --config.replay.max_size.'
  )


def decay_warning(config: types.Config) -> str:
  """Returns a warning if the learning rate reaches 0 before the end, or ''."""
  settings, total = config.get('optimizer', {}), config.total_env_frames
  decay_frames = settings.get('decay_frames')
  is_linear = settings.get('schedule') == 'linear'
  if not is_linear or not decay_frames or settings.final_learning_rate:
    return ''
  if decay_frames >= total:
    return ''
  return (
    f'The learning rate reaches 0 after {progress.format_count(decay_frames)} '
    f'of {progress.format_count(total)} frames, and the rest of the run does '
    'not train. To decay it over the whole run, set '
    f'--config.optimizer.decay_frames={total}.'
  )


def _environment(config: types.Config, parts: opening.Parts) -> str:
  spec = parts.plan.env_spec
  leaves = observations.read_leaves(config.network, spec)
  arrays = [leaf.describe_array() for leaf in leaves]
  if key := spec.stream.action_mask:
    arrays.append(f'{key} masks actions')
  if spec.stream.tasks:
    arrays.append('the task' if config.network.use_task else 'not the task')
  texts = [
    spec.env_id,
    f'observation {", ".join(arrays)}',
    _action(spec.action),
  ]
  count = f'{spec.num_envs:,}'
  if parts.actors is not None:
    texts.append(f'actors at {", ".join(parts.actors.addresses)}')
    count = f'up to {count}'
  texts.append(f'{count} environments + {spec.num_eval_envs:,} for evaluation')
  return '; '.join(texts)


def _action(spec: types.ActionSpec) -> str:
  if spec.kind == 'hybrid':
    return ' with '.join(map(_action, spec.parts))
  if spec.kind == 'discrete':
    return f'{spec.num_values} actions'
  if spec.kind == 'multi_discrete':
    return f'actions of {len(spec.sizes)} choices'
  return f'actions {spec.dtype}{list(spec.shape)}'


def _agent(config: types.Config, plan: plan_lib.Plan, lag: float | None) -> str:
  leaves = observations.read_leaves(config.network, plan.env_spec)
  torsos = dict.fromkeys(leaf.describe_torso() for leaf in leaves)
  state = plan.agent.state_shapes()
  # An agent of the user's may keep them elsewhere in its state.
  params = jax.tree.leaves(getattr(state, 'params', state))
  count = sum(math.prod(x.shape) for x in params)
  steps = config.unroll_length
  texts = [
    config.agent,
    ', '.join(torsos),
    f'{count:,} parameters',
    f'batch of {config.batch_size:,} unrolls of {steps:,} '
    f'step{"s" * (steps != 1)}',
  ]
  if lag is not None:
    texts.append(f'expected policy lag {lag:.1f} batches')
  return '; '.join(texts)


def _store(config: types.Config, parts: opening.Parts) -> str:
  kind, size = config.replay.sampler, config.replay.max_size
  text = 'queue' if kind == 'fifo' else f'{kind} replay'
  if size is not None:
    text += f' of up to {size:,} unrolls'
  if isinstance(parts.store, device_replay.DeviceStore):
    return f'{text} on the devices'
  if parts.store.address is None:
    return f'{text} in this process'
  return f'{text} in Reverb at {parts.store.address}'
