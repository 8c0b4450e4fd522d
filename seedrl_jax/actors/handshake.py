"""The handshake of an actor and its learner: `Hello`, then `Welcome`.

`Welcome` holds all that an actor needs to make its environments, so it needs no
configuration. `LocalRun` adds what an actor needs to act by itself.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_collections

from seedrl_jax import types
from seedrl_jax.actors import wire
from seedrl_jax.configs import base as base_config
from seedrl_jax.runtime import settings

# Sections that an actor's agent does not need; `env` is sent apart.
_LEARNER_SECTIONS = {
  'actors',
  'checkpoint',
  'demonstrations',
  'env',
  'log',
  'topology',
}
_MAX_NAME = 200
# A spec of choices has a range for each number.
_MAX_SPEC = 2000
# Values that a learner sends, which an actor does not believe unchecked.
_ENV_VALUES = {
  key: allowed
  for key, allowed in base_config.SAVED.items()
  if key.startswith('env.')
}
_LOCAL_VALUES = {
  key: allowed
  for key, allowed in base_config.SAVED.items()
  if key.partition('.')[0] not in _LEARNER_SECTIONS
}


class Hello(NamedTuple):
  """The actor's first message."""

  num_envs: int
  name: str  # of the actor, for messages
  acts_itself: bool = False  # or the learner acts


class LocalRun(NamedTuple):
  """What an actor needs to act and to write unrolls by itself."""

  config: dict[str, Any]  # by `local_config`
  global_env_id: list[int]  # `[num_envs]`, run-wide ids
  num_train_envs: int
  num_eval_envs: int
  block_width: int  # unrolls that are assembled side by side
  replay_address: str  # host:port of Reverb, as the learner sees it
  parameters: dict[str, str]  # leaves as sent, by `spec_texts`


class Welcome(NamedTuple):
  """The learner's answer."""

  run_id: str  # unique id of this connection of the group
  seed: int  # environment i is seeded with `seed + i`
  env: dict[str, Any]  # the section of the learner's config
  spec: dict[str, str]  # of the learner's environments, by `spec_texts`
  local: LocalRun | None = None  # for an actor that acts itself


_HELLO = {
  'num_envs': settings.integer(1),
  'name': settings.TEXT,
  'acts_itself': settings.FLAG,
}


def local_config(config: ml_collections.ConfigDict) -> dict[str, Any]:
  """Returns the parts of a run's config that make the agent and the table."""
  values = config.to_dict()
  parts = {k: v for k, v in values.items() if k not in _LEARNER_SECTIONS}
  # As in config.json.
  return json.loads(json.dumps(parts, default=str))


def spec_texts(specs: Mapping[str, Any]) -> dict[str, str]:
  """Returns specs as text, which both sides compare; a long one is hashed."""
  texts = {}
  for name, spec in specs.items():
    texts[name] = text = str(spec)
    if len(text) > _MAX_SPEC:
      digest = hashlib.sha256(text.encode()).hexdigest()
      texts[name] = f'{text[:_MAX_SPEC]}… (SHA-256 {digest})'
  return texts


def requested_config(
  welcome: Welcome, num_threads: int = 0, affinity: int = -1
) -> ml_collections.ConfigDict:
  """Returns the config that a learner asks for, for `envs.trust` to check.

  `affinity` is the first processor of the environments' threads; -1: any.

  Raises `ValueError` if no learner would ask for it.
  """
  env = welcome.env | {
    'num_threads': num_threads,
    'thread_affinity_offset': affinity,
    # Instead of processes, start more actors.
    'processes': 0,
  }
  values, allowed = {'env': env}, _ENV_VALUES
  if welcome.local is not None:
    values = welcome.local.config | values
    allowed = _ENV_VALUES | _LOCAL_VALUES
  config = settings.make_config(values)
  settings.check(config, allowed, complete=False)
  return config


def pack_hello(hello: Hello) -> bytes:
  return wire.pack_json(hello._asdict())


def unpack_hello(message: wire.Message) -> Hello:
  """Unpacks a HELLO message; raises `WireError` if it is invalid."""
  value = wire.unpack_json(message)
  if value.keys() != _HELLO.keys() or not all(
    allowed.admits(value[name]) for name, allowed in _HELLO.items()
  ):
    raise wire.WireError(f'HELLO cannot be understood: {value!s:.200}.')
  return Hello(**value | {'name': value['name'][:_MAX_NAME]})


def pack_welcome(welcome: Welcome) -> bytes:
  """Packs a WELCOME message; raises `ValueError` if it cannot be sent."""
  local = welcome.local and welcome.local._asdict()
  return wire.pack_json(welcome._asdict() | {'local': local})


def unpack_welcome(message: wire.Message) -> Welcome:
  """Unpacks a WELCOME message; raises `WireError` if it has other fields."""
  value = wire.unpack_json(message)
  try:
    local = value['local']
    if local is not None:
      local = LocalRun(**local)
    return Welcome(**value | {'env': dict(value['env']), 'local': local})
  except (KeyError, TypeError, ValueError) as e:
    raise wire.WireError(f'WELCOME cannot be understood ({e!r:.200}).') from e


def check_spec(welcome: Welcome, spec: types.StreamSpec) -> None:
  """Raises `ValueError` if the actor has other environments, with `spec`."""
  for name, ours in spec_texts(spec._asdict()).items():
    theirs = welcome.spec.get(name)
    if theirs != ours:
      raise ValueError(
        f'{spec.name} has another {name} at the actor than at the learner: '
        f'{ours} instead of {theirs}; install the same environments on both '
        'sides.'
      )
