"""The handshake of an actor and its learner: `Hello`, then `Welcome`.

`Welcome` holds all that an actor needs to make its environments, so it needs no
configuration. `LocalRun` adds what an actor needs to act by itself.
"""

from typing import Any, NamedTuple

import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.envs import base

# Keys of the `env` section that only concern the learner's own environments.
_LEARNER_KEYS = (
  *('num_envs', 'batch_size'),
  *('num_threads', 'thread_affinity_offset', 'processes'),
)
_MAX_NAME = 200

# Who acts: the learner, or the actor itself.
CENTRAL, LOCAL = 'central', 'local'
INFERENCE = (CENTRAL, LOCAL)


class Hello(NamedTuple):
  """The actor's first message.

  Attributes:
    name: of the actor; '' if the learner need not wait for it at the end.
    inference: one of `INFERENCE`.
  """

  num_envs: int
  name: str
  inference: str = CENTRAL


class LocalRun(NamedTuple):
  """What an actor needs to act and to write unrolls by itself.

  Attributes:
    config: the parts of the run's config that make the agent and the table.
    global_env_id: int32 `[num_envs]`, run-wide ids of the actor's environments.
    block_width: unrolls that are assembled side by side.
    replay_address: 'host:port' of the Reverb server, as the learner sees it.
    parameters: specs of the leaves by name, in the order of transmission.
  """

  config: dict[str, Any]
  global_env_id: np.ndarray
  num_train_envs: int
  num_eval_envs: int
  block_width: int
  replay_address: str
  parameters: dict[str, types.ArraySpec]


class Welcome(NamedTuple):
  """The learner's answer.

  Attributes:
    run_id: unique id of this connection of the group.
    env_id: int32 `[num_envs]`, ids to send with their steps.
    seed: environment i is seeded with `seed + i`.
    env: as `env_values` returns it.
    local: for an actor that acts itself.
  """

  run_id: str
  env_id: np.ndarray
  seed: int
  env: dict[str, Any]
  spec: base.StreamSpec
  local: LocalRun | None = None


def env_values(env_config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the part of a config's `env` section that actors receive."""
  values = env_config.to_dict()
  return {k: v for k, v in values.items() if k not in _LEARNER_KEYS}


def requested_config(welcome: Welcome) -> dict[str, Any]:
  """Returns the config that a learner asks for, for `envs.trust` to check."""
  run = welcome.local.config if welcome.local is not None else {}
  return run | {'env': welcome.env}


def env_config(
  welcome: Welcome, num_threads: int, affinity: int
) -> ml_collections.ConfigDict:
  """Returns an `env` section for `envs.factory` at the actor.

  `affinity` is the first processor of the environments' threads; -1: any.
  """
  own = {
    'num_threads': num_threads,
    'thread_affinity_offset': affinity,
    # Start more actors instead.
    'processes': 0,
  }
  return ml_collections.ConfigDict(welcome.env | own)


def pack_hello(hello: Hello) -> bytes:
  """Packs a HELLO message."""
  return wire.pack_json(wire.MessageKind.HELLO, hello._asdict())


def unpack_hello(message: wire.Message) -> Hello:
  """Unpacks a HELLO message; raises `WireError` if it is invalid."""
  wire.expect(message, wire.MessageKind.HELLO)
  value = wire.unpack_json(message)
  num_envs, name = value.get('num_envs'), value.get('name')
  # `bool` is a subclass of `int`.
  if type(num_envs) is not int or num_envs < 1 or not isinstance(name, str):
    raise wire.WireError('HELLO must have num_envs, at least 1, and a name.')
  inference = value.get('inference')
  if inference not in INFERENCE:
    raise wire.WireError(f'HELLO must name one of {INFERENCE} as inference.')
  return Hello(num_envs, name[:_MAX_NAME], inference)


def pack_welcome(welcome: Welcome) -> bytes:
  """Packs a WELCOME message; raises `ValueError` if it cannot be sent."""
  spec = welcome.spec._asdict()
  spec['observation'] = _spec_to_json(welcome.spec.observation)
  spec['action'] = _action_to_json(welcome.spec.action)
  value = welcome._asdict() | {
    'env_id': welcome.env_id.tolist(),
    'spec': spec,
    'local': welcome.local and _local_to_json(welcome.local),
  }
  return wire.pack_json(wire.MessageKind.WELCOME, value)


def unpack_welcome(message: wire.Message) -> Welcome:
  """Unpacks a WELCOME message; raises `WireError` if it is invalid."""
  wire.expect(message, wire.MessageKind.WELCOME)
  value = wire.unpack_json(message)
  try:
    spec = dict(value['spec'])
    spec['observation'] = _spec_from_json(spec['observation'])
    spec['action'] = _action_from_json(spec['action'])
    return Welcome(
      run_id=str(value['run_id']),
      env_id=np.array(value['env_id'], np.int32),
      seed=int(value['seed']),
      env=dict(value['env']),
      spec=base.StreamSpec(**spec),
      local=value['local'] and _local_from_json(value['local']),
    )
  except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as e:
    raise wire.WireError(f'WELCOME cannot be understood: {e!r}.') from None


def check_specs(learner: base.StreamSpec, actor: base.StreamSpec) -> None:
  """Raises `ValueError` if the two sides have different environments."""
  for name, theirs, ours in zip(learner._fields, learner, actor, strict=True):
    if theirs != ours:
      raise ValueError(
        f'{actor.name} has another {name} at the actor than at the learner: '
        f'{_text(ours)} instead of {_text(theirs)}; install the same '
        'environments on both sides.'
      )


def _text(part: Any) -> str:
  if isinstance(part, dict):
    return ', '.join(f'{key} {_text(value)}' for key, value in part.items())
  if isinstance(part, types.ActionSpec):
    return _action_text(part)
  if isinstance(part, types.ArraySpec):
    return f'{part.dtype.name} {list(part.shape)}'
  return str(part)


def _action_text(spec: types.ActionSpec) -> str:
  if spec.is_discrete and not spec.shape and not any(spec.minimum):
    return f'{spec.num_values} discrete actions'
  low, high = (
    f'{limit[0]:g}' if len({*limit}) == 1 else f'({", ".join(map(str, limit))})'
    for limit in (spec.minimum, spec.maximum)
  )
  return f'{spec.dtype.name} {list(spec.shape)} in [{low}, {high}]'


def _local_to_json(local: LocalRun) -> dict[str, Any]:
  # A list, as its order matters.
  named = [[k, _spec_to_json(v)] for k, v in local.parameters.items()]
  return local._asdict() | {
    'global_env_id': local.global_env_id.tolist(),
    'parameters': named,
  }


def _local_from_json(value: dict[str, Any]) -> LocalRun:
  fields = value | {
    'config': dict(value['config']),
    'global_env_id': np.array(value['global_env_id'], np.int32),
    'parameters': {
      str(name): _spec_from_json(spec) for name, spec in value['parameters']
    },
  }
  return LocalRun(**fields)


def _spec_to_json(nest: types.Nest) -> Any:
  """Returns `[dtype, shape]` for each `ArraySpec` in a nest of dicts."""
  if isinstance(nest, dict):
    return {key: _spec_to_json(value) for key, value in nest.items()}
  return [nest.dtype.str, list(nest.shape)]


def _spec_from_json(nest: Any) -> types.Nest:
  if isinstance(nest, dict):
    return {key: _spec_from_json(nest[key]) for key in sorted(nest)}
  dtype, shape = nest
  return types.ArraySpec(tuple(map(int, shape)), np.dtype(dtype))


def _action_to_json(spec: types.ActionSpec) -> list[Any]:
  # As text, since JSON has no infinite numbers.
  bounds = [[*map(str, limit)] for limit in (spec.minimum, spec.maximum)]
  return [spec.dtype.str, list(spec.shape), *bounds]


def _action_from_json(value: list[Any]) -> types.ActionSpec:
  dtype, shape, low, high = value
  return types.ActionSpec(
    tuple(map(int, shape)),
    np.dtype(dtype),
    tuple(map(float, low)),
    tuple(map(float, high)),
  )
