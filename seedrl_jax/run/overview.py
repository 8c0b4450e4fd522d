"""Describes a run in three lines, which its start prints."""

import math
import pathlib

import jax

from seedrl_jax import types
from seedrl_jax.networks import observations
from seedrl_jax.replay import device as device_replay
from seedrl_jax.run import parts as parts_lib


def lines(
  config: types.Config, parts: parts_lib.Parts, workdir: pathlib.Path
) -> list[str]:
  """Returns a line each on environment, agent, and store with devices."""
  return [
    f'Environment: {_environment(config, parts)}.',
    f'Agent: {_agent(config, parts)}.',
    f'Store: {_store(config, parts)}; {parts.topology.describe()}; writes to '
    f'{workdir}',
  ]


def _environment(config: types.Config, parts: parts_lib.Parts) -> str:
  spec = parts.env_spec
  leaves = observations.read_leaves(config.network, spec)
  arrays = [leaf.describe_array() for leaf in leaves]
  if key := spec.stream.action_mask:
    arrays.append(f'{key} masks actions')
  if spec.stream.tasks:
    takes_task = observations.takes_task(config.network)
    arrays.append('the task' if takes_task else 'not the task')
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


def _agent(config: types.Config, parts: parts_lib.Parts) -> str:
  leaves = observations.read_leaves(config.network, parts.env_spec)
  torsos = dict.fromkeys(leaf.describe_torso() for leaf in leaves)
  state = parts.agent.state_shapes()
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
  if parts.lag is not None:
    texts.append(parts.lag.describe())
  return '; '.join(texts)


def _store(config: types.Config, parts: parts_lib.Parts) -> str:
  kind, size = config.replay.sampler, config.replay.max_size
  text = 'queue' if kind == 'fifo' else f'{kind} replay'
  if size is not None:
    text += f' of up to {size:,} unrolls'
  if isinstance(parts.store, device_replay.DeviceStore):
    return f'{text} on the devices'
  if parts.store.address is None:
    return f'{text} in this process'
  return f'{text} in Reverb at {parts.store.address}'
