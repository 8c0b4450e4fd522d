"""Environments of Jumanji that have one agent."""

import dataclasses
from typing import Any

import jax
import jumanji
from jumanji import specs as jumanji_specs

from seedrl_jax import types
from seedrl_jax.device_envs import batching
from seedrl_jax.envs import specs


def names() -> list[str]:
  """Returns the names of all environments, those of several agents included."""
  return sorted(jumanji.registered_environments())


def make(
  name: str, flag: str, options: dict[str, Any], dropped: tuple[str, ...]
) -> types.DeviceEnv:
  """Makes environments; `options` are arguments of their constructor.

  `dropped` are keys of observations to leave out. Raises ValueError, with
  `flag`, if agents cannot use the environment.
  """
  env = jumanji.make(name, **options)
  if env.reward_spec.shape:
    raise ValueError(
      f'{flag}: has {env.reward_spec.shape[0]} rewards per step, one for each '
      'agent; take an environment of one agent.'
    )

  def observe(timestep: Any) -> types.Nest:
    return specs.keep_keys(dropped, _as_dict(timestep.observation))

  def reset(key: jax.Array) -> tuple[types.Nest, types.Nest]:
    state, timestep = env.reset(key)
    return state, observe(timestep)

  def step(
    key: jax.Array, state: types.Nest, action: jax.Array
  ) -> batching.Transition:
    del key  # The state has its own.
    state, timestep = env.step(state, action)
    return batching.Transition(
      state=state,
      observation=observe(timestep),
      reward=timestep.reward,
      terminated=timestep.last() & (timestep.discount == 0),
      truncated=timestep.last(),
    )

  observation, action = (
    jumanji_specs.jumanji_specs_to_gym_spaces(spec)
    for spec in (env.observation_spec, env.action_spec)
  )
  spec = types.StreamSpec(
    observation=specs.observation_spec(observation, flag, dropped),
    action=specs.action_spec(action, flag),
    action_repeat=1,
    name=f'jumanji:{name}',
  )
  return batching.batch(spec, reset, step)


def _as_dict(observation: Any) -> types.Nest:
  if dataclasses.is_dataclass(observation):
    fields = vars(observation)
  elif hasattr(observation, '_asdict'):
    fields = observation._asdict()
  else:
    return observation
  return {key: _as_dict(x) for key, x in sorted(fields.items())}
