"""What actor and learner agree on before the first step.

The actor says how many environments it has room for (`Hello`); the learner
answers with everything needed to make them (`Welcome`), so that actors have no
configuration of their own. One that acts itself is told with which agent and
where its unrolls go, too (`LocalRun`). Called by `actor` and `admission`.
"""

from typing import Any, NamedTuple

import ml_collections
import numpy as np

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.envs import base

# The rest of the `env` section is about the learner's own environments.
_HOST_KEYS = (
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
    num_envs: environments that it will have.
    name: of the actor, for messages; '' for one that nobody need wait for.
    inference: one of `INFERENCE`.
  """

  num_envs: int
  name: str
  inference: str = CENTRAL


class LocalRun(NamedTuple):
  """What an actor must know of a run to act and to write unrolls itself.

  Attributes:
    config: what the agent, and the table, are made from: the run's config, less
      what is the learner's own business.
    global_env_id: int32 `[num_envs]`, run-wide ids of the actor's environments.
    num_train_envs, num_eval_envs: of the whole run, as `types.EnvSpec` has
      them.
    block_width: unrolls that are assembled side by side.
    replay_address: 'host:port' of the Reverb server, as the learner sees it.
    parameters: specs of the leaves by name, in the order in which they travel.
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
    run_id: names this stay of these environments; never used again.
    env_id: int32 `[num_envs]`, ids to send with their steps.
    seed: environment i is seeded with `seed + i`.
    env: the `env` section of the run's config, less what is the actor's own
      business.
    spec: what the learner's environments look like.
    local: for an actor that acts itself.
  """

  run_id: str
  env_id: np.ndarray
  seed: int
  env: dict[str, Any]
  spec: base.StreamSpec
  local: LocalRun | None = None


def env_values(env_config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns what a `Welcome` says of the `env` section of a config."""
  values = env_config.to_dict()
  return {k: v for k, v in values.items() if k not in _HOST_KEYS}


def asked(welcome: Welcome) -> dict[str, Any]:
  """Returns what a learner asks for, for `envs.trust`."""
  run = welcome.local.config if welcome.local is not None else {}
  return run | {'env': welcome.env}


def env_config(
  welcome: Welcome, num_threads: int, affinity: int
) -> ml_collections.ConfigDict:
  """Returns an `env` section for `envs.factory` on the actor's host.

  Args:
    welcome: from the learner.
    num_threads: threads of the environments' pool; 0: what the cores allow.
    affinity: first processor for them; -1: any.
  """
  host = {
    'num_threads': num_threads,
    'thread_affinity_offset': affinity,
    # Actors are processes: more of them serve as well.
    'processes': 0,
  }
  return ml_collections.ConfigDict(welcome.env | host)


def pack_hello(hello: Hello) -> bytes:
  """Makes the message."""
  return wire.pack_json(wire.Kind.HELLO, hello._asdict())


def unpack_hello(message: wire.Message) -> Hello:
  """Returns what an actor says.

  Raises:
    wire.WireError: where it is not a `Hello`.
  """
  wire.expect(message, wire.Kind.HELLO)
  value = wire.unpack_json(message)
  num_envs, name = value.get('num_envs'), value.get('name')
  # True is an int, too.
  if type(num_envs) is not int or num_envs < 1 or not isinstance(name, str):
    raise wire.WireError('HELLO must have num_envs, at least 1, and a name.')
  inference = value.get('inference')
  if inference not in INFERENCE:
    raise wire.WireError(f'HELLO must name one of {INFERENCE} as inference.')
  return Hello(num_envs, name[:_MAX_NAME], inference)


def pack_welcome(welcome: Welcome) -> bytes:
  """Makes the message.

  Raises:
    ValueError: where an environment's option cannot be sent.
  """
  spec = welcome.spec._asdict()
  spec['observation'] = _spec_to_json(welcome.spec.observation)
  spec['action'] = _action_to_json(welcome.spec.action)
  value = welcome._asdict() | {
    'env_id': welcome.env_id.tolist(),
    'spec': spec,
    'local': welcome.local and _local_to_json(welcome.local),
  }
  return wire.pack_json(wire.Kind.WELCOME, value)


def unpack_welcome(message: wire.Message) -> Welcome:
  """Returns what the learner says.

  Raises:
    wire.WireError: where it is not a `Welcome`.
  """
  wire.expect(message, wire.Kind.WELCOME)
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
  """Checks that both sides have the same environments.

  Raises:
    ValueError: a sentence for people on both sides.
  """
  for name, theirs, ours in zip(learner._fields, learner, actor, strict=True):
    if theirs != ours:
      raise ValueError(
        f'{actor.name} has another {name} at the actor than at the learner, '
        f'{_text(ours)} instead of {_text(theirs)}: install the same '
        'environments on both sides.'
      )


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


def _text(part: Any) -> str:
  if isinstance(part, types.ActionSpec):
    return str(_action_to_json(part))
  return str(_spec_to_json(part))


def _action_to_json(spec: types.ActionSpec) -> dict[str, Any]:
  return spec._asdict() | {'dtype': spec.dtype.str}


def _action_from_json(value: dict[str, Any]) -> types.ActionSpec:
  return types.ActionSpec(
    shape=tuple(map(int, value['shape'])),
    dtype=np.dtype(value['dtype']),
    minimum=tuple(map(float, value['minimum'])),
    maximum=tuple(map(float, value['maximum'])),
  )


def _spec_to_json(nest: Any) -> Any:
  """Returns `[dtype, shape]` for each `ArraySpec` in a nest of dicts."""
  if isinstance(nest, dict):
    return {key: _spec_to_json(value) for key, value in nest.items()}
  if isinstance(nest, types.ArraySpec):
    return [nest.dtype.str, list(nest.shape)]
  return nest


def _spec_from_json(nest: Any) -> types.Nest:
  if isinstance(nest, dict):
    return {key: _spec_from_json(nest[key]) for key in sorted(nest)}
  dtype, shape = nest
  return types.ArraySpec(tuple(map(int, shape)), np.dtype(dtype))
